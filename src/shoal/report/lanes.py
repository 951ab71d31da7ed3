"""What each peer did in each of its steps, from its spans: how long each lane was busy, what was sent and received.

A step lasts from one ``step`` event of a peer's log to the next. Spans that overlap on a lane count once.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from shoal.launch.logs import read_spans
from shoal.report.intervals import Interval, common, union, within
from shoal.trace import Span
from shoal.worker import RunFolder
from shoal.worker.saving import COMMITTED, WRITTEN
from shoal.worker.stopping import AFTER, ASK, AT, WHEN

WARMUP = 3
"""A session's first steps are left out of figures of time: they load code, fill caches and open connections."""

COMPUTING = ("compute", "update")
TALKING = ("send", "wait", "serve")
"""``serve`` adds up what a ring's messages bring; in virtual time it lies within the span of the whole collective."""

BESIDE = frozenset({AFTER, ASK, AT, WHEN, WRITTEN, COMMITTED, "metric", "eval"})
"""Messages of the worker's own protocols, which run beside training and hold nothing up: one waits for the end of the
run from its beginning. Their bytes count, their time does not."""

Ends = Mapping[int, float]
"""Step → when it ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Busy:
    """Seconds of one step.

    Args:
        lanes: lane → in which it was busy.
        computing: in which the peer computed or updated.
        hidden: in which it sent, waited or added up while it computed.
        exposed: in which it did so and did not compute.
    """

    lanes: Mapping[str, float]
    computing: float
    hidden: float
    exposed: float
    sent_bytes: int
    received_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of one peer. `busy` is None where no spans tell of it."""

    seconds: float
    busy: Busy | None = None


def timed_steps(
    folder: RunFolder, ends: Mapping[str, Ends], notes: list[str]
) -> tuple[dict[str, dict[int, Step]], int, int]:
    """Peer → its steps after the warm-up; and how many spans there are, and how many of them have no duration.

    Args:
        ends: of each peer's steps, in one session.
        notes: gets what is missing or odd.
    """
    traffic = _Traffic(ends)
    lanes: dict[str, dict[int, _Seconds]] = {}
    windows = {peer: _windows(peer, found, notes) for peer, found in ends.items()}
    count = empty = 0
    for peer in ends:
        spans = _spans(folder, peer, notes)
        count += len(spans)
        empty += sum(span.stop <= span.start for span in spans)
        for span in spans:
            traffic.add(span)
        lanes[peer] = _lanes(spans, windows[peer])
        missing = len(windows[peer]) - len(lanes[peer])
        if spans and missing > 1:
            notes.append(f"the spans of {peer} end {missing} steps early: its lanes and bytes are of the others")
    timed = {
        peer: {step: _step(traffic, peer, step, high - low, lanes[peer].get(step)) for step, (low, high) in at.items()}
        for peer, at in windows.items()
    }
    return timed, count, empty


@dataclass(frozen=True, slots=True)
class _Seconds:
    lanes: Mapping[str, float]
    computing: float
    talking: float
    hidden: float


class _Traffic:
    """Bytes per peer and step. A transfer counts in the step in which it ended, at either end."""

    def __init__(self, ends: Mapping[str, Ends]) -> None:
        self._steps = {peer: sorted(found) for peer, found in ends.items()}
        self._at = {peer: [found[step] for step in self._steps[peer]] for peer, found in ends.items()}
        self.sent: dict[str, Counter[int]] = {peer: Counter() for peer in ends}
        self.received: dict[str, Counter[int]] = {peer: Counter() for peer in ends}

    def add(self, span: Span) -> None:
        nbytes = span.args.get("bytes")
        if span.lane != "send" or not isinstance(nbytes, int):
            return
        self._count(self.sent, span.peer, span.stop, nbytes)
        target = span.args.get("to", span.peer)  # without it a collective, in which as much comes in as goes out
        self._count(self.received, target, span.stop, nbytes)

    def _count(self, into: Mapping[str, Counter[int]], peer: object, at: float, nbytes: int) -> None:
        """Add to the step of `peer` that was going on `at`, if there is one."""
        if not isinstance(peer, str) or peer not in into:
            return
        n = bisect_left(self._at[peer], at)
        if n < len(self._at[peer]):
            into[peer][self._steps[peer][n]] += nbytes


def _step(traffic: _Traffic, peer: str, step: int, seconds: float, found: _Seconds | None) -> Step:
    if found is None:
        return Step(seconds=seconds)
    busy = Busy(
        lanes=found.lanes,
        computing=found.computing,
        hidden=found.hidden,
        exposed=max(0.0, found.talking - found.hidden),
        sent_bytes=traffic.sent[peer][step],
        received_bytes=traffic.received[peer][step],
    )
    return Step(seconds=seconds, busy=busy)


def _windows(peer: str, ends: Ends, notes: list[str]) -> dict[int, Interval]:
    """Step → its interval, for all but the first steps. A step whose predecessor is not in the log has none."""
    pairs = list(pairwise(sorted(ends)))[WARMUP - 1 :]
    found = {step: (ends[before], ends[step]) for before, step in pairs if step == before + 1}
    timed = {step: window for step, window in found.items() if window[1] > window[0]}
    if len(timed) < len(found):
        notes.append(f"{len(found) - len(timed)} steps of {peer} have no duration and are not averaged in")
    return timed


def _spans(folder: RunFolder, peer: str, notes: list[str]) -> list[Span]:
    found, dropped = read_spans(folder.spans(peer))
    spans = [span for span in found if _whole(span)]
    if not spans:
        notes.append(f"{peer} left no spans: its lanes are unknown, and what others received is too low")
    if dropped:
        notes.append(f"{peer} left out {dropped:,} spans for want of room, the last ones")
    if len(spans) < len(found):
        notes.append(f"{len(found) - len(spans)} spans of {peer} have no times")
    return spans


def _whole(span: Span) -> bool:
    times = (span.start, span.stop)
    return isinstance(span.args, Mapping) and all(isinstance(at, int | float) and math.isfinite(at) for at in times)


def _lanes(spans: Sequence[Span], windows: Mapping[int, Interval]) -> dict[int, _Seconds]:
    """Step → what its lanes did, for the steps that the spans reach: those of a killed worker end before its log."""
    reach = max((span.stop for span in spans), default=-math.inf)
    steps = [step for step, (_, high) in windows.items() if high <= reach]
    at = [windows[step] for step in steps]
    by_lane: dict[str, list[Interval]] = {}
    for span in spans:
        if span.lane in ("send", "wait") and span.name in BESIDE:
            continue
        by_lane.setdefault(span.lane, []).append((span.start, span.stop))
    joined = {lane: union(intervals) for lane, intervals in by_lane.items()}
    computing, talking = _of(joined, COMPUTING), _of(joined, TALKING)
    busy = {lane: within(intervals, at) for lane, intervals in joined.items()}
    rows = zip(within(computing, at), within(talking, at), within(common(computing, talking), at), strict=True)
    return {
        step: _Seconds({lane: seconds[n] for lane, seconds in busy.items()}, *row)
        for n, (step, row) in enumerate(zip(steps, rows, strict=True))
    }


def _of(joined: Mapping[str, Sequence[Interval]], lanes: Iterable[str]) -> list[Interval]:
    return union(interval for lane in lanes for interval in joined.get(lane, ()))
