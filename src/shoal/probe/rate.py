"""The steady rate of a stream of arrivals, and how sure it is.

Byte counts over time are a line once the stream has settled; before that TCP doubles its rate every round trip. So the
rate is the slope of the last stretch of the curve that is straight: the stretch is cut into blocks, and their rates
must agree and must not rise or fall.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from shoal.probe.figures import Figure

BLOCKS = 5
LEAST_POINTS = 10
"""Stamps without which a stretch is never called straight."""
STRETCHES = (1.0, 2.0, 4.0)
"""Lengths that are tried, in windows: noise that one window cannot average may be gone after four."""


@dataclass(frozen=True, slots=True)
class Rate:
    """Bytes/s with its spread; `settled` if the curve was straight for at least a window."""

    figure: Figure
    settled: bool


class Arrivals:
    """The curve of bytes that have arrived: one point per moment, whatever arrived at it."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.totals: list[int] = []

    def add(self, at: float, nbytes: int) -> bool:
        """Note an arrival; True if it is the first at its moment (so the points before are complete)."""
        total = nbytes + (self.totals[-1] if self.totals else 0)
        if self.times and at <= self.times[-1]:
            self.totals[-1] = total
            return False
        self.times.append(at)
        self.totals.append(total)
        return True

    def recent(self, seconds: float, points: int) -> float | None:
        """Bytes/s over the last complete points that span so many seconds, or so many points; None if too few yet."""
        stop = len(self.times) - 2
        start = bisect_right(self.times, self.times[stop] - seconds) - 1 if stop >= 1 else -1
        start = max(start, stop - points)
        if start < 0:
            return None
        return (self.totals[stop] - self.totals[start]) / (self.times[stop] - self.times[start])

    def rate(self, window: float, tolerance: float) -> Rate | None:
        """The steady rate as the complete points have it, None with fewer than three of them.

        Args:
            window: seconds for which it must have been steady.
            tolerance: the largest spread that counts as settled.
        """
        return steady(self.times[:-1], self.totals[:-1], window, tolerance)


def steady(times: Sequence[float], totals: Sequence[float], window: float, tolerance: float) -> Rate | None:
    """The slope of the latest straight stretch of the curve; of the straightest, if none is straight enough.

    Args:
        times: seconds, rising.
        totals: bytes that had arrived by then.
    """
    if len(times) < 3:
        return None
    best: Rate | None = None
    for length in [k * window for k in STRETCHES]:
        if times[-1] - length < times[0]:
            break
        rate = _stretch(times, totals, bisect_right(times, times[-1] - length) - 1, tolerance)
        if rate.settled:
            return rate
        best = rate if best is None or rate.figure.spread < best.figure.spread else best
    if best is None:
        half = bisect_right(times, (times[0] + times[-1]) / 2) - 1
        best = Rate(_stretch(times, totals, min(half, len(times) - 3), tolerance).figure, settled=False)
    return best


def _stretch(times: Sequence[float], totals: Sequence[float], first: int, tolerance: float) -> Rate:
    """Slope, spread and verdict of the curve from point `first` on."""
    times, totals = times[first:], totals[first:]
    slope = _slope(times, totals)
    blocks = _blocks(times, totals)
    mean = sum(blocks) / BLOCKS
    deviation = math.sqrt(sum((block - mean) ** 2 for block in blocks) / (BLOCKS - 1))
    spread = 2.0 * deviation / math.sqrt(BLOCKS) / slope if slope > 0 else math.inf
    trend = abs(blocks[-1] + blocks[-2] - blocks[0] - blocks[1]) / (2.0 * mean) if mean > 0 else math.inf
    settled = len(times) >= LEAST_POINTS and spread <= tolerance and trend <= 2.0 * tolerance
    return Rate(Figure(value=slope, spread=spread), settled)


def _slope(times: Sequence[float], totals: Sequence[float]) -> float:
    """Of the least-squares line: the two ends alone would carry the noise of two single arrivals."""
    t0, y0 = sum(times) / len(times), sum(totals) / len(totals)
    over = sum((t - t0) * (y - y0) for t, y in zip(times, totals, strict=True))
    return over / sum((t - t0) ** 2 for t in times)


def _blocks(times: Sequence[float], totals: Sequence[float]) -> list[float]:
    """Mean rates of equal parts of the stretch; the curve is read as a polygon."""
    edges = [times[0] + (times[-1] - times[0]) * k / BLOCKS for k in range(BLOCKS + 1)]
    at = [_read(times, totals, edge) for edge in edges]
    width = (times[-1] - times[0]) / BLOCKS
    return [(b - a) / width for a, b in pairwise(at)]


def _read(times: Sequence[float], totals: Sequence[float], at: float) -> float:
    right = min(max(1, bisect_right(times, at)), len(times) - 1)
    left = right - 1
    share = (at - times[left]) / (times[right] - times[left])
    return totals[left] + share * (totals[right] - totals[left])
