"""What happened: spans per peer and lane, and events; the same from every world.

A `Trace` is fed by a world and drained by whoever keeps the run (a file per peer in processes, memory in a rehearsal).
`timeline` turns spans into the JSON that Perfetto (ui.perfetto.dev) and chrome://tracing open.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

SPAN_LIMIT = 200_000
"""Spans kept per peer. A run of any length has a bounded trace; what is dropped is counted."""


@dataclass(frozen=True, slots=True)
class Span:
    """An interval on one lane of one peer, in seconds since the run began.

    Lanes are the world's computation lanes, plus ``"send"`` (a transfer from its start to its end) and ``"wait"``.
    """

    peer: str
    lane: str
    name: str
    start: float
    stop: float
    args: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened at one time: a step, a decision, a message taken, a peer lost."""

    peer: str
    kind: str
    at: float
    fields: Mapping[str, Any] = field(default_factory=dict)


class Trace:
    """Collects the spans and events of one peer, up to a limit of spans.

    Args:
        on_event: called with each event as it happens (write-through, so that a killed worker leaves its log).
    """

    def __init__(self, *, span_limit: int = SPAN_LIMIT, on_event: Callable[[Event], None] | None = None) -> None:
        self.spans: list[Span] = []
        self.events: list[Event] = []
        self.dropped = 0
        self._limit, self._on_event = span_limit, on_event

    def span(self, span: Span) -> None:
        if len(self.spans) < self._limit:
            self.spans.append(span)
        else:
            self.dropped += 1

    def event(self, event: Event) -> None:
        if self._on_event is None:
            self.events.append(event)
        else:
            self._on_event(event)


def timeline(spans: Iterable[Span], events: Iterable[Event] = ()) -> dict[str, Any]:
    """Spans and events as a Chrome trace object: one process per peer, one thread per lane.

    Complete events of one track must nest, so spans that overlap on a lane (transfers do) are laid on sub-tracks.
    Times are microseconds with at most three decimals, never in exponent notation.
    """
    ordered = sorted(spans, key=lambda s: (s.peer, s.lane, s.start, s.stop))
    instants = sorted(events, key=lambda e: (e.peer, e.at))
    pids = {peer: n for n, peer in enumerate(sorted({s.peer for s in ordered} | {e.peer for e in instants}), start=1)}
    out: list[dict[str, Any]] = [_meta("process_name", pid, 0, peer) for peer, pid in pids.items()]
    tids: dict[tuple[int, str, int], int] = {}
    free: dict[tuple[int, str], list[tuple[float, int]]] = {}  # heap of (end, sub-track) per lane
    for s in ordered:
        pid = pids[s.peer]
        stop = max(s.start, s.stop)
        busy = free.setdefault((pid, s.lane), [])
        if busy and busy[0][0] <= s.start:
            _, sub = heapq.heappop(busy)
        else:
            sub = len(busy)
        heapq.heappush(busy, (stop, sub))
        tid = tids.setdefault((pid, s.lane, sub), len(tids) + 1)
        span = {"ph": "X", "pid": pid, "tid": tid, "name": s.name, "cat": s.lane}
        out.append({**span, "ts": _us(_ns(s.start)), "dur": _us(_ns(stop) - _ns(s.start)), "args": _json(s.args)})
    for (pid, lane, sub), tid in tids.items():
        out.append(_meta("thread_name", pid, tid, lane if sub == 0 else f"{lane} {sub + 1}"))
    for e in instants:
        instant = {"ph": "i", "s": "p", "pid": pids[e.peer], "tid": 0, "name": e.kind}
        out.append({**instant, "ts": _us(_ns(e.at)), "args": _json(e.fields)})
    return {"traceEvents": out, "displayTimeUnit": "ms"}


def _meta(name: str, pid: int, tid: int, value: str) -> dict[str, Any]:
    return {"ph": "M", "pid": pid, "tid": tid, "name": name, "args": {"name": value}}


def _ns(seconds: float) -> int:
    """Whole nanoseconds. Ends are rounded, never durations, so that spans that touch still do."""
    return round(seconds * 1e9)


def _us(nanoseconds: int) -> float:
    return nanoseconds / 1000


def _json(value: Any) -> Any:
    """`value` as strict JSON can say it: a loss of NaN becomes ``"nan"``, anything unknown its text."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else str(value)
        case Mapping():
            return {str(key): _json(item) for key, item in value.items()}
        case list() | tuple():
            return [_json(item) for item in value]
        case _:
            return str(value)
