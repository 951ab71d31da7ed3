"""The estimator on made traces whose true rate is known."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.probe.rate import Arrivals, steady

RATE = 10e6


def trace(*, seconds: float, slow_start: float = 0.0, round_trip: float = 0.1, chunk: int = 50_000) -> list[float]:
    """When each chunk arrives if the rate doubles every round trip until `RATE` is reached after `slow_start`."""
    times, waiting, step = [], 0.0, 1e-3
    for n in range(round(seconds / step)):
        waiting += step * RATE * min(1.0, 2.0 ** ((n * step - slow_start) / round_trip))
        while waiting >= chunk:
            waiting -= chunk
            times.append((n + 1) * step - waiting / RATE)
    return times


def totals(times: list[float], chunk: int = 50_000) -> list[float]:
    return [chunk * (n + 1) for n in range(len(times))]


@given(rate=st.floats(1e3, 1e10), start=st.floats(0.0, 1e4), points=st.integers(3, 200))
def test_a_straight_line_gives_its_slope(rate: float, start: float, points: int) -> None:
    times = [start + 0.01 * n for n in range(points)]
    found = steady(times, [rate * (t - start) for t in times], 0.5, 0.02)
    assert found is not None and found.figure.value == pytest.approx(rate, rel=1e-6)
    assert found.settled == (points > 51) or points == 51, "a window is 50 intervals"


def test_two_points_say_nothing() -> None:
    assert steady([0.0, 1.0], [0, 1], 0.5, 0.02) is None


def test_slow_start_is_not_taken_for_the_rate() -> None:
    """While the rate still doubles nothing settles; afterwards the slope is that of the steady part."""
    times = trace(seconds=4.0, slow_start=1.2)
    first = None
    for n in range(3, len(times)):
        found = steady(times[:n], totals(times[:n]), 1.0, 0.02)
        if found is not None and found.settled:
            first = times[n - 1]
            assert found.figure.value == pytest.approx(RATE, rel=0.03)
            break
    assert first is not None and 1.2 < first < 3.0


@pytest.mark.parametrize("seed", range(8))
def test_noise_of_arrivals_is_averaged_away(seed: int) -> None:
    random = Random(seed)
    times = sorted(t + random.gauss(0.0, 0.01) for t in trace(seconds=3.0, slow_start=0.5))
    found = steady(times, totals(times), 0.5, 0.02)
    assert found is not None and found.figure.value == pytest.approx(RATE, rel=0.05)
    assert abs(found.figure.value / RATE - 1.0) < 0.01 + 2 * found.figure.spread


@pytest.mark.parametrize("seed", range(8))
def test_dips_after_losses_count_and_widen_the_interval(seed: int) -> None:
    """Every half second or so the rate drops to a third for 100 ms; the true mean is known from the trace."""
    random = Random(seed)
    at, times, dip = 0.0, [], 0.3
    while at < 6.0:
        dipped = dip < at < dip + 0.1
        if at > dip + 0.1:
            dip = at + random.uniform(0.4, 0.6)
        at += 50_000 / (RATE / 3 if dipped else RATE)
        times.append(at)
    truth = 50_000 * (len(times) - 1) / (times[-1] - times[0])
    found = steady(times, totals(times), 2.0, 0.02)
    assert found is not None and found.figure.value == pytest.approx(truth, rel=0.06)
    assert found.figure.spread > 0.0


def test_a_rate_that_changes_for_good_does_not_settle_at_the_change() -> None:
    times = [0.01 * n for n in range(100)] + [1.0 + 0.02 * n for n in range(25)]
    found = steady(times, totals(times), 1.0, 0.02)
    assert found is not None and not found.settled and found.figure.spread > 0.02


def test_arrivals_at_one_moment_are_one_point_which_is_complete_when_the_next_comes() -> None:
    arrivals = Arrivals()
    for burst in range(40):
        assert arrivals.add(0.1 * (burst + 1), 100)
        assert not any(arrivals.add(0.1 * (burst + 1), 100) for _ in range(3))
    assert (len(arrivals.times), arrivals.totals[-1]) == (40, 16_000)
    found = arrivals.rate(1.0, 0.02)
    assert found is not None and found.settled and found.figure.value == pytest.approx(4_000)
    assert arrivals.recent(0.5, 100) == pytest.approx(4_000)
    assert Arrivals().recent(0.5, 100) is None
