"""Intervals of time: their union, so that overlaps count once, what two sets share, and how much lies in which step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Interval = tuple[float, float]


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """The same points as disjoint intervals, in order. Intervals without a duration vanish."""
    out: list[Interval] = []
    for start, stop in sorted(pair for pair in intervals if pair[1] > pair[0]):
        if out and start <= out[-1][1]:
            out[-1] = (out[-1][0], max(out[-1][1], stop))
        else:
            out.append((start, stop))
    return out


def length(intervals: Iterable[Interval]) -> float:
    return sum(stop - start for start, stop in intervals)


def common(a: Sequence[Interval], b: Sequence[Interval]) -> list[Interval]:
    """The points that are in both; `a` and `b` are disjoint and in order, as `union` returns them."""
    out: list[Interval] = []
    i = j = 0
    while i < len(a) and j < len(b):
        start, stop = max(a[i][0], b[j][0]), min(a[i][1], b[j][1])
        if start < stop:
            out.append((start, stop))
        if a[i][1] < b[j][1]:
            i += 1
        else:
            j += 1
    return out


def within(intervals: Sequence[Interval], windows: Sequence[Interval]) -> list[float]:
    """How much of each window `intervals` cover; both are disjoint and in order. One pass over both."""
    out: list[float] = []
    first = 0
    for low, high in windows:
        while first < len(intervals) and intervals[first][1] <= low:
            first += 1
        covered, n = 0.0, first
        while n < len(intervals) and intervals[n][0] < high:
            covered += min(intervals[n][1], high) - max(intervals[n][0], low)
            n += 1
        out.append(covered)
    return out
