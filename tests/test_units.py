"""Quantities: what people write is what is meant, or it is refused with what to write."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from shoal import units
from shoal.units import (
    BANDWIDTH,
    BYTES,
    FILE,
    FLOPS,
    MEMORY_BANDWIDTH,
    PRICE_PER_BYTE,
    SECONDS,
    Quantity,
    WrongValueError,
)

EXACT = [BANDWIDTH, MEMORY_BANDWIDTH, SECONDS, FLOPS, units.PRICE_PER_HOUR, PRICE_PER_BYTE]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("100Mbps", 8.0), ("100MB/s", 1.0), ("100Mbit", 8.0), ("12.5MBps", 8.0), ("0.1Gbps", 8.0), ("100 Mbit/s", 8.0)],
)
def test_bits_and_bytes_differ_by_eight(text: str, seconds: float) -> None:
    """Case B1: moving 100 MB (10^8 bytes)."""
    assert units.byte_count("100 MB") / units.bandwidth(text) == seconds


def test_mebibytes_over_megabits() -> None:
    """Case B1: 100 MiB over 100 Mbps take 8.389 s."""
    assert units.byte_count("100 MiB") / units.bandwidth("100 Mbps") == pytest.approx(8.388608, abs=1e-12)


@pytest.mark.parametrize("bare", [100, 100.0, "100", " 100 "])
def test_a_bare_number_is_refused_with_both_spellings(bare: object) -> None:
    """Case B1: a bandwidth of 100 says neither bits nor bytes."""
    with pytest.raises(WrongValueError, match="needs a unit") as caught:
        units.bandwidth(bare)
    assert "Mbps" in caught.value.mend and "megabits" in caught.value.mend
    assert "MB/s" in caught.value.mend and "megabytes" in caught.value.mend


@pytest.mark.parametrize(
    ("text", "spellings"),
    [
        ("100 mbps", ['"100 Mbps" (megabits per second)', '"100 MBps" (megabytes per second)']),
        ("100 MBPS", ['"100 Mbps" (megabits per second)', '"100 MBps" (megabytes per second)']),
        ("100 mb/s", ['"100 Mb/s" (megabits per second)', '"100 MB/s" (megabytes per second)']),
        ("7 Kbps", ['"7 kbps" (kilobits per second)', '"7 kBps" (kilobytes per second)']),
    ],
)
def test_wrong_case_is_never_guessed(text: str, spellings: list[str]) -> None:
    """Case B1: only case tells bits from bytes, so both proper spellings are offered."""
    with pytest.raises(WrongValueError, match="ambiguous") as caught:
        units.bandwidth(text)
    assert all(spelling in caught.value.mend for spelling in spellings)


@pytest.mark.parametrize(
    ("read", "text", "offered"),
    [
        (units.byte_count, "24 gib", '"24 GiB"'),
        (units.byte_count, "64 KB", '"64 kB"'),
        (units.byte_count, "10 Mb", '"10 MB"'),
        (units.seconds, "2 H", '"2 h"'),
        (units.seconds, "3 sec", '"3 s"'),
        (units.seconds, "5 m", '"5 min"'),
        (units.flops, "10 tflops", '"10 TFLOPS"'),
        (units.bandwidth, "100 MB", '"100 MB/s"'),
        (units.seconds, 20, '"20 ms"'),
        (units.byte_count, 4096, '"4096 MB"'),
    ],
)
def test_a_wrong_unit_is_refused_with_a_right_one(read, text: object, offered: str) -> None:
    with pytest.raises(WrongValueError) as caught:
        read(text)
    assert offered in caught.value.mend


@pytest.mark.parametrize(
    "raw", ["", "fast", "Mbps", "-3 Mbps", "1e999 Mbps", "nan Mbps", "1 2 Mbps", True, None, [1], math.inf]
)
def test_nonsense_is_refused_with_an_example(raw: object) -> None:
    with pytest.raises(WrongValueError) as caught:
        units.bandwidth(raw)
    assert "Mbps" in caught.value.mend


@pytest.mark.parametrize(
    ("read", "text", "value"),
    [
        (units.seconds, "20 ms", 0.02),
        (units.seconds, "20ms", 0.02),
        (units.seconds, "50 µs", 50e-6),
        (units.seconds, "50 \u03bcs", 50e-6),
        (units.seconds, "15 s", 15.0),
        (units.seconds, "10 min", 600.0),
        (units.seconds, "2 h", 7200.0),
        (units.byte_count, "24 GiB", 24 * 2**30),
        (units.byte_count, "500 MB", 500_000_000),
        (units.byte_count, "1.3 GiB", 1395864371),
        (units.flops, "10 TFLOP/s", 1e13),
        (units.flops, "10 TFLOPS", 1e13),
        (units.bandwidth, "0 Mbps", 0.0),
        (units.bandwidth, "1e2 Mbps", 12.5e6),
        (units.bandwidth, ".5 Gbps", 62.5e6),
        (PRICE_PER_BYTE.parse, "0.09 $/GB", 0.09e-9),
        (units.PRICE_PER_HOUR.parse, "1.20 USD/h", 1.2),
    ],
)
def test_values(read, text: str, value: float) -> None:
    assert read(text) == value


@pytest.mark.parametrize(
    ("raw", "value"), [("5 %", 0.05), ("5%", 0.05), (0.05, 0.05), (0, 0.0), (1, 1.0), ("100 %", 1.0)]
)
def test_shares(raw: object, value: float) -> None:
    assert units.share(raw) == value


def test_a_share_over_one_is_refused_with_what_it_may_mean() -> None:
    with pytest.raises(WrongValueError) as caught:
        units.share(5)
    assert caught.value.mend == 'write "5 %" or 0.05'


@pytest.mark.parametrize("raw", ["0.05", -0.1, "101 %", "-1 %", True, None, "5 percent", math.nan])
def test_what_is_no_share(raw: object) -> None:
    with pytest.raises(WrongValueError):
        units.share(raw)


@settings(deadline=None)
@given(st.sampled_from(EXACT), st.floats(min_value=0, allow_infinity=False, allow_subnormal=False, max_value=1e30))
def test_written_quantities_read_back_exactly(quantity: Quantity, value: float) -> None:
    assert quantity.parse(quantity.write(value)) == value


@settings(deadline=None)
@given(st.integers(min_value=0, max_value=10**25))
def test_written_byte_counts_read_back_exactly(count: int) -> None:
    assert units.byte_count(BYTES.write(count)) == count


@settings(deadline=None)
@given(st.sampled_from(EXACT), st.floats(min_value=1e-12, max_value=1e20))
def test_shown_quantities_are_right_to_three_digits(quantity: Quantity, value: float) -> None:
    assert quantity.parse(quantity.show(value)) == pytest.approx(value, rel=5.1e-3)


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (units.show_bandwidth(12.5e6), "100 Mbps"),
        (units.show_bandwidth(12345678.9), "98.8 Mbps"),
        (units.show_bandwidth(math.inf), "inf"),
        (units.show_bytes(24 * 2**30), "24 GiB"),
        (units.show_bytes(1234567), "1.23 MB"),
        (units.show_bytes(1234567.4), "1.23 MB"),
        (units.show_seconds(0.02), "20 ms"),
        (units.show_seconds(0.0123456), "12.3 ms"),
        (units.show_seconds(600.0), "10 min"),
        (units.show_seconds(0.9999999), "1 s"),
        (units.show_flops(1e13), "10 TFLOP/s"),
        (units.show_share(0.05), "5 %"),
    ],
)
def test_what_people_see(shown: str, text: str) -> None:
    assert shown == text


class Settings(BaseModel):
    rate: units.Bandwidth = 1.0
    wait: units.Seconds | None = None
    size: units.ByteCount = 1


def test_models_take_text_from_files_and_numbers_from_code() -> None:
    assert Settings(rate=2.0, wait=3.0, size=4).rate == 2.0
    read = Settings.model_validate({"rate": "8 Mbps", "wait": "3 s", "size": "1 kB"}, context=FILE)
    assert (read.rate, read.wait, read.size) == (1e6, 3.0, 1000)
    with pytest.raises(ValidationError, match="needs a unit"):
        Settings.model_validate({"rate": 8}, context=FILE)


def test_models_write_text_for_files_and_numbers_for_code() -> None:
    settings = Settings(rate=1e6, wait=None, size=1000)
    assert settings.model_dump() == {"rate": 1e6, "wait": None, "size": 1000}
    assert settings.model_dump(context=FILE) == {"rate": "8 Mbps", "wait": None, "size": "1 kB"}


def test_reading_files_needs_neither_torch_nor_numpy() -> None:
    """Help and completion must be instant."""
    code = "import sys, shoal.job, shoal.cluster, shoal.registry; print({'torch', 'numpy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.strip() == "set()"
