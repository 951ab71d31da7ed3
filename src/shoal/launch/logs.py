"""The logs that a peer leaves in the run folder: its events, written through, and its spans, about once a second.

Both are JSON lines. A worker that was killed leaves a last line that is torn; readers skip it, and a resumed run starts
on a line of its own. A run folder that was resumed holds several *sessions* in one event log; each begins with a
``session`` event, and `last_session` gives the events of the newest one.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from shoal.trace import Event, Span, Trace

SESSION = "session"
FLUSH_SECONDS = 1.0


class EventLog:
    """Appends events to a file, one line each, handed to the operating system at once: a kill -9 loses nothing.

    Args:
        path: created if absent.
        session: names this run of the folder; the same for all peers.
    """

    def __init__(self, path: Path, *, session: str) -> None:
        torn = path.exists() and not path.read_bytes().endswith(b"\n") and path.stat().st_size > 0
        self._file = path.open("a", encoding="utf-8", buffering=1)
        if torn:
            self._file.write("\n")
        self(Event(path.stem, SESSION, 0.0, {"session": session}))

    def __call__(self, event: Event) -> None:
        self._file.write(_line({"at": event.at, "kind": event.kind, **event.fields}))

    def close(self) -> None:
        self._file.close()


class SpanFile:
    """Writes the spans of a `Trace` to a file while it grows. The file holds the newest session only."""

    def __init__(self, path: Path, trace: Trace) -> None:
        self._trace, self._written = trace, 0
        self._file = path.open("w", encoding="utf-8")
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="spans", daemon=True)

    def __enter__(self) -> SpanFile:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._done.set()
        self._thread.join()
        write_spans(self._file, (), dropped=self._trace.dropped)
        self._file.close()

    def _follow(self) -> None:
        while not self._done.wait(FLUSH_SECONDS):
            self._flush()
        self._flush()

    def _flush(self) -> None:
        new = self._trace.spans[self._written :]
        self._written += len(new)
        write_spans(self._file, new)
        self._file.flush()


def write_spans(file: Any, spans: Iterable[Span], *, dropped: int = 0) -> None:
    """Write `spans` to the open text file, and a last line with the number of dropped ones if there are any."""
    for s in spans:
        fields = {"lane": s.lane, "name": s.name, "start": s.start, "stop": s.stop}
        file.write(_line({**fields, "args": dict(s.args)} if s.args else fields))
    if dropped:
        file.write(_line({"dropped": dropped}))


def read_events(path: Path) -> list[Event]:
    """All events in a peer's log; lines that are torn or not ours are skipped. The peer is the file's name."""
    peer = path.stem
    out = []
    for raw in _objects(path):
        if isinstance(raw.get("kind"), str) and isinstance(raw.get("at"), int | float):
            fields = {key: value for key, value in raw.items() if key not in ("kind", "at")}
            out.append(Event(peer, raw["kind"], float(raw["at"]), fields))
    return out


def read_spans(path: Path) -> tuple[list[Span], int]:
    """The spans in a peer's file, and how many were dropped for want of room."""
    spans, dropped = [], 0
    for raw in _objects(path):
        if "dropped" in raw:
            dropped += int(raw["dropped"])
        elif raw.keys() >= {"lane", "name", "start", "stop"}:
            span = Span(path.stem, raw["lane"], raw["name"], raw["start"], raw["stop"], raw.get("args", {}))
            spans.append(span)
    return spans, dropped


def last_session(logs: Mapping[str, Sequence[Event]]) -> dict[str, list[Event]]:
    """Per peer the events of the newest session, without its header.

    A peer that died before it wrote the newest header has no events in it. Logs without headers are one session.
    """
    newest = None
    for events in logs.values():
        seen = [e.fields.get("session") for e in events if e.kind == SESSION]
        if newest is None or (seen and newest in seen[:-1]):
            newest = seen[-1] if seen else None
    return {peer: list(_from_session(events, newest)) for peer, events in logs.items()}


def _from_session(events: Sequence[Event], session: object) -> Iterator[Event]:
    inside = session is None
    for event in events:
        if event.kind == SESSION:
            inside = event.fields.get("session") == session
        elif inside:
            yield event


def _objects(path: Path) -> Iterator[dict[str, Any]]:
    if not path.exists():
        return
    for line in path.read_bytes().splitlines():
        try:
            raw = json.loads(line)
        except ValueError:
            continue
        if isinstance(raw, dict):
            yield raw


def _line(raw: Mapping[str, Any]) -> str:
    return json.dumps(raw, default=str, separators=(",", ":")) + "\n"
