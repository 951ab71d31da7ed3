from __future__ import annotations

import math

import pytest

from shoal.report.text import baselines, clock, count, json_ready, nats, size, to_json


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0"), (12.345, "12.3"), (999.6, "1k"), (12_345, "12.3k"), (2e6, "2M"), (3.5e12, "3.5T")]
)
def test_counts_have_three_digits(number: float, text: str) -> None:
    assert count(number) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.0123, "0.0123 s"),
        (12.34, "12.3 s"),
        (59.94, "59.9 s"),
        (59.96, "1:00"),
        (243, "4:03"),
        (7384.4, "2:03:04"),
    ],
)
def test_clock(seconds: float, text: str) -> None:
    assert clock(seconds) == text


@pytest.mark.parametrize(
    ("nbytes", "text"), [(0, "0 B"), (999, "999 B"), (46_723, "46.7 kB"), (1_234_567, "1.23 MB"), (2e12, "2 TB")]
)
def test_sizes_have_three_digits(nbytes: float, text: str) -> None:
    assert size(nbytes) == text


def test_missing_loss_is_a_dash_and_baselines_go_from_weak_to_strong() -> None:
    assert nats(None) == "–" and nats(2.18) == "2.1800"
    assert baselines({"bigram": 2.42, "unigram": 3.24}) == "unigram 3.2400, bigram 2.4200"


def test_json_ready_replaces_what_json_lacks_at_any_depth() -> None:
    assert json_ready({"a": [1.5, math.nan, (math.inf, "x")], "b": {"c": -math.inf}, "d": 3}) == {
        "a": [1.5, None, [None, "x"]],
        "b": {"c": None},
        "d": 3,
    }


def test_to_json_is_valid_whatever_is_in_it() -> None:
    assert to_json({"a": [1.5, (2,)]}) == '{"a":[1.5,[2]]}'
    assert to_json({"a": [1.5, math.nan]}) == '{"a":[1.5,null]}'
