"""Quantities with units, as people write them: ``"100 Mbps"``, ``"20 ms"``, ``"24 GiB"``, ``"5 %"``.

Inside Shoal a quantity is a plain number in seconds, bytes, FLOP/s or bytes/s; in a file it carries its unit. Spelling
is strict about case, because case is all that tells bits from bytes: ``Mbps`` and ``Mb/s`` are megabits, ``MBps`` and
``MB/s`` are megabytes, and ``mbps`` or ``MBPS`` is refused with both spellings named, never guessed. Prefixes k, M, G,
T, P are powers of 1000; Ki, Mi, Gi, Ti, Pi are powers of 1024.

A `Quantity` reads (`parse`), writes for people (`show`, three digits) and writes for files (`write`, which parses back
to exactly the same number). The annotated types at the end put quantities into pydantic models.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Annotated, Any

from pydantic import BeforeValidator, PlainSerializer, SerializationInfo, ValidationInfo

FILE = "file"
"""Pydantic context, for validation and serialization, in which quantities are text with units; else plain numbers."""

_NUMBER = re.compile(
    r"\s*([+-]?(?:\d{1,40}\.?\d{0,40}|\.\d{1,40})(?:[eE][+-]?\d{1,3})?)\s*(.*?)\s*", re.ASCII | re.DOTALL
)
_DECIMAL = {"": ("", 1), "k": ("kilo", 10**3), "M": ("mega", 10**6), "G": ("giga", 10**9), "T": ("tera", 10**12)}
_DECIMAL["P"] = ("peta", 10**15)
_BINARY = {"Ki": ("kibi", 2**10), "Mi": ("mebi", 2**20), "Gi": ("gibi", 2**30), "Ti": ("tebi", 2**40)}
_BINARY["Pi"] = ("pebi", 2**50)


class WrongValueError(ValueError):
    """A value that cannot be used, for validators: what is wrong (`problem`) and what to write instead (`mend`).

    Args:
        key: dotted key of the value, relative to the table that is being validated; empty for the value itself.
    """

    def __init__(self, problem: str, mend: str = "", *, key: str = "") -> None:
        self.problem, self.mend, self.key = problem, mend, key
        super().__init__(f"{problem}; {mend}" if mend else problem)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Quantity:
    """A kind of quantity and the units it may be written in.

    Args:
        name: with its article, for messages (``"a bandwidth"``).
        units: spelling → how many inside units one of it is.
        base: the unit that can express any number exactly.
        shown: the units used when writing.
        exact: more units used when writing, where they express the number exactly.
        suggest: the units offered when one is missing.
        meaning: spelling → in words, to tell look-alikes apart (``"Mbps"`` → ``"megabits per second"``).
        whole: values are rounded to whole numbers.
    """

    name: str
    units: Mapping[str, Fraction]
    base: str
    shown: Sequence[str]
    suggest: Sequence[str]
    exact: Sequence[str] = ()
    meaning: Mapping[str, str] = field(default_factory=dict)
    whole: bool = False

    def parse(self, raw: object) -> float:
        """The number of inside units that `raw` says.

        Raises:
            WrongValueError: no number, no unit, an unknown or ambiguous unit, negative, or not finite.
        """
        found = None if isinstance(raw, bool) or not isinstance(raw, str | int | float) else _NUMBER.fullmatch(str(raw))
        if found is None:
            raise WrongValueError(f"not {self.name}", f"write e.g. {self._offer('20', self.suggest)}")
        number, unit = found.groups()
        if not unit:
            raise WrongValueError(f"{self.name} needs a unit", f"write {self._offer(number, self.suggest)}")
        if unit not in self.units:
            raise WrongValueError(*self._unknown(number, unit))
        exact = Fraction(number) * self.units[unit]
        if exact < 0:
            raise WrongValueError(
                f"{self.name} cannot be negative", f"write e.g. {self._offer(number.lstrip('-'), [unit])}"
            )
        try:
            value = float(exact)
        except OverflowError:
            raise WrongValueError(
                f"too large for {self.name}", f"write e.g. {self._offer('20', self.suggest)}"
            ) from None
        return round(exact) if self.whole else value

    def show(self, value: float) -> str:
        """`value` for people: exactly if that is short, else with three significant digits."""
        if not math.isfinite(value):
            return str(value)
        exact = self.write(value)
        if len(exact.partition(" ")[0]) <= 5:
            return exact
        descending = sorted(self.shown, key=lambda unit: self.units[unit], reverse=True)
        scaled = {unit: float(f"{float(Fraction(value) / self.units[unit]):.3g}") for unit in descending}
        unit = next((unit for unit in descending if abs(scaled[unit]) >= 1), descending[-1])
        return f"{scaled[unit]:.12g} {unit}"

    def write(self, value: float) -> str:
        """`value` for a file: the shortest text that parses back to exactly `value` (finite and not negative)."""
        if value == 0:
            return f"0 {self.suggest[0]}"
        choices = []
        for unit in {self.base, *self.shown, *self.exact}:
            scaled = Fraction(value) / self.units[unit]
            number = str(int(scaled)) if scaled.denominator == 1 and scaled < 10**15 else _plain(float(scaled))
            if value >= 0 and self.parse(f"{number} {unit}") == value:
                choices.append(("e" in number, len(number), scaled < 1, -self.units[unit], f"{number} {unit}"))
        return min(choices)[-1] if choices else f"{value} {self.base}"

    def _unknown(self, number: str, unit: str) -> tuple[str, str]:
        """Problem and mend for a unit that does not exist. Spellings that differ in case only are all named."""
        alike = [known for known in self.units if known.casefold() == unit.casefold()]
        if len(alike) > 1:
            return f"the unit {unit!r} is ambiguous", f"write {self._offer(number, alike)}"
        near = alike or difflib.get_close_matches(unit, self.units, n=1, cutoff=0.7) or self.suggest
        return f"{unit!r} is no unit of {self.name}", f"write e.g. {self._offer(number, near)}"

    def _offer(self, number: str, units: Sequence[str]) -> str:
        texts = [f'"{number} {unit}"' + (f" ({self.meaning[unit]})" if unit in self.meaning else "") for unit in units]
        return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} or {texts[-1]}"


def _plain(number: float) -> str:
    return repr(number).removesuffix(".0")


def _prefixed(*spellings: str, binary: bool = False, scale: Fraction = Fraction(1)) -> dict[str, Fraction]:
    """Units for each spelling (``"bps"``, ``"bit/s"``) with every prefix."""
    prefixes = {**_DECIMAL, **_BINARY} if binary else _DECIMAL
    return {prefix + unit: factor * scale for unit in spellings for prefix, (_, factor) in prefixes.items()}


def _named(word: str, *spellings: str) -> dict[str, str]:
    return {prefix + unit: name + word for unit in spellings for prefix, (name, _) in {**_DECIMAL, **_BINARY}.items()}


_BITS = ("bps", "bit/s", "b/s", "bit")
_BYTES = ("B/s", "Bps", "byte/s")
_RATES = {**_prefixed(*_BITS, binary=True, scale=Fraction(1, 8)), **_prefixed(*_BYTES, binary=True)}
_RATE_NAMES = {**_named("bits per second", *_BITS), **_named("bytes per second", *_BYTES)}
_MICRO = {"us": Fraction(1, 10**6), "\u00b5s": Fraction(1, 10**6), "\u03bcs": Fraction(1, 10**6)}

BANDWIDTH = Quantity(
    name="a bandwidth",
    units=_RATES,
    base="bps",
    shown=("bps", "kbps", "Mbps", "Gbps", "Tbps"),
    suggest=("Mbps", "MB/s"),
    meaning=_RATE_NAMES,
)
"""Of a network, bytes/s. Written in bits per second, as networks are sold."""

MEMORY_BANDWIDTH = Quantity(
    name="a memory bandwidth",
    units=_RATES,
    base="B/s",
    shown=("B/s", "kB/s", "MB/s", "GB/s", "TB/s"),
    suggest=("GB/s", "TB/s"),
    meaning=_RATE_NAMES,
)
"""Of a device's memory, bytes/s. Written in bytes per second, as memory is sold."""

SECONDS = Quantity(
    name="a time",
    units={
        "ns": Fraction(1, 10**9),
        **_MICRO,
        "ms": Fraction(1, 1000),
        "s": Fraction(1),
        "min": Fraction(60),
        "h": Fraction(3600),
        "d": Fraction(86400),
    },
    base="s",
    shown=("ns", "us", "ms", "s", "min", "h"),
    suggest=("ms", "s", "min"),
)
"""Seconds."""

BYTES = Quantity(
    name="a number of bytes",
    units=_prefixed("B", binary=True),
    base="B",
    shown=("B", "kB", "MB", "GB", "TB"),
    exact=("KiB", "MiB", "GiB", "TiB"),
    suggest=("MB", "MiB", "GiB"),
    whole=True,
)
"""Bytes."""

FLOPS = Quantity(
    name="a speed",
    units=_prefixed("FLOP/s", "FLOPS"),
    base="FLOP/s",
    shown=tuple(_prefixed("FLOP/s")),
    suggest=("GFLOP/s", "TFLOP/s"),
)
"""Of a device, floating-point operations per second."""

PRICE_PER_HOUR = Quantity(
    name="a price per hour",
    units={"$/h": Fraction(1), "USD/h": Fraction(1)},
    base="$/h",
    shown=("$/h",),
    suggest=("$/h",),
)
"""US dollars per hour."""

PRICE_PER_BYTE = Quantity(
    name="a price of traffic",
    units={
        f"{money}/{prefix}B": Fraction(1, factor)
        for money in ("$", "USD")
        for prefix, (_, factor) in {**_DECIMAL, **_BINARY}.items()
    },
    base="$/B",
    shown=("$/GB",),
    suggest=("$/GB",),
)
"""US dollars per byte."""


def bandwidth(raw: object) -> float:
    """Bytes per second of ``"100 Mbps"`` (12,500,000) or ``"12.5 MB/s"`` (the same)."""
    return BANDWIDTH.parse(raw)


def seconds(raw: object) -> float:
    """Seconds of ``"20 ms"``, ``"15 s"``, ``"10 min"`` or ``"2 h"``."""
    return SECONDS.parse(raw)


def byte_count(raw: object) -> int:
    """Bytes of ``"24 GiB"`` or ``"500 MB"``, rounded to a whole number."""
    return int(BYTES.parse(raw))


def flops(raw: object) -> float:
    """FLOP/s of ``"10 TFLOP/s"`` or ``"10 TFLOPS"``."""
    return FLOPS.parse(raw)


def share(raw: object) -> float:
    """The fraction that ``"5 %"`` or the number 0.05 says, in [0, 1].

    Raises:
        WrongValueError: a number over 1 (``5`` is probably five per cent, but could be a slip), or no share at all.
    """
    if isinstance(raw, int | float) and not isinstance(raw, bool):
        if 0 <= raw <= 1:
            return float(raw)
        raise WrongValueError(
            "not a share", f'write "{raw} %" or {raw / 100:.6g}' if 1 < raw <= 100 else 'write e.g. "5 %" or 0.05'
        )
    found = _NUMBER.fullmatch(raw) if isinstance(raw, str) else None
    if found is None or found[2] not in ("%", ""):
        raise WrongValueError("not a share", 'write e.g. "5 %" or 0.05')
    number = Fraction(found[1])
    if not found[2]:
        raise WrongValueError(
            "a share in quotes needs its unit", f'write "{found[1]} %", or the fraction without quotes'
        )
    if not 0 <= number <= 100:
        raise WrongValueError("a share is from 0 % to 100 %", 'write e.g. "5 %" or 0.05')
    return float(number / 100)


def show_bandwidth(bytes_per_s: float) -> str:
    """``12_500_000.0`` → ``"100 Mbps"``."""
    return BANDWIDTH.show(bytes_per_s)


def show_bytes(count: float) -> str:
    """``25_769_803_776`` → ``"24 GiB"``; ``1_234_567`` → ``"1.23 MB"``."""
    return BYTES.show(round(count)) if math.isfinite(count) else str(count)


def show_seconds(value: float) -> str:
    """``0.02`` → ``"20 ms"``."""
    return SECONDS.show(value)


def show_flops(per_s: float) -> str:
    """``1e13`` → ``"10 TFLOP/s"``."""
    return FLOPS.show(per_s)


def show_share(fraction: float) -> str:
    """``0.05`` → ``"5 %"``."""
    return f"{100 * fraction:.3g} %"


def _reads(quantity: Quantity) -> BeforeValidator:
    def read(raw: Any, info: ValidationInfo) -> Any:
        plain = isinstance(raw, int | float) and not isinstance(raw, bool)
        return raw if plain and info.context != FILE else quantity.parse(raw)

    return BeforeValidator(read)


def _writes(quantity: Quantity) -> PlainSerializer:
    def write(value: float, info: SerializationInfo) -> Any:
        return quantity.write(value) if info.context == FILE and value is not None else value

    return PlainSerializer(write)


ByteCount = Annotated[int, BYTES, _reads(BYTES), _writes(BYTES)]
Seconds = Annotated[float, SECONDS, _reads(SECONDS), _writes(SECONDS)]
Share = Annotated[float, BeforeValidator(share)]
Bandwidth = Annotated[float, BANDWIDTH, _reads(BANDWIDTH), _writes(BANDWIDTH)]
MemoryBandwidth = Annotated[float, MEMORY_BANDWIDTH, _reads(MEMORY_BANDWIDTH), _writes(MEMORY_BANDWIDTH)]
FlopsPerS = Annotated[float, FLOPS, _reads(FLOPS), _writes(FLOPS)]
PricePerHour = Annotated[float, PRICE_PER_HOUR, _reads(PRICE_PER_HOUR), _writes(PRICE_PER_HOUR)]
PricePerByte = Annotated[float, PRICE_PER_BYTE, _reads(PRICE_PER_BYTE), _writes(PRICE_PER_BYTE)]
