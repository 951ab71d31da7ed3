from __future__ import annotations

from pathlib import Path

from shoal.launch.logs import EventLog, SpanFile, last_session, read_events, read_spans
from shoal.trace import Event, Span, Trace


def test_events_come_back_as_they_went_in(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    log = EventLog(path, session="s1")
    log(Event("a", "step", 1.5, {"step": 1, "loss": (2.5).hex()}))
    assert read_events(path) == [  # without closing: every line is handed to the system at once
        Event("a", "session", 0.0, {"session": "s1"}),
        Event("a", "step", 1.5, {"step": 1, "loss": (2.5).hex()}),
    ]
    log.close()


def test_torn_line_is_skipped_and_does_not_spoil_the_next_session(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"at":1.0,"kind":"step","step":1}\n{"at":2.0,"kind":"st')
    log = EventLog(path, session="s2")
    log(Event("a", "step", 0.1, {"step": 2}))
    log.close()
    assert [(e.kind, e.fields.get("step")) for e in read_events(path)] == [("step", 1), ("session", None), ("step", 2)]


def test_last_session_is_the_newest_of_all_peers(tmp_path: Path) -> None:
    """A peer that died before it began the newest session has no part in it."""
    for session, peers in (("s1", "abc"), ("s2", "ab")):
        for peer in peers:
            log = EventLog(tmp_path / f"{peer}.jsonl", session=session)
            log(Event(peer, "step", 0.0, {"step": session}))
            log.close()
    logs = {peer: read_events(tmp_path / f"{peer}.jsonl") for peer in "cab"}
    found = last_session(logs)
    assert {peer: [e.fields["step"] for e in events] for peer, events in found.items()} == {
        "a": ["s2"],
        "b": ["s2"],
        "c": [],
    }
    assert last_session({"a": [Event("a", "step", 0.0)]}) == {"a": [Event("a", "step", 0.0)]}
    assert last_session({"a": []}) == {"a": []}


def test_span_file_holds_all_spans_and_counts_the_dropped(tmp_path: Path) -> None:
    path, trace = tmp_path / "a.jsonl", Trace(span_limit=2)
    spans = [Span("a", "compute", f"forward {n}", float(n), n + 0.5, {"step": n} if n else {}) for n in range(3)]
    path.write_text("an older session\n")
    with SpanFile(path, trace):
        for span in spans:
            trace.span(span)
    assert read_spans(path) == (spans[:2], 1)


def test_missing_files_are_empty(tmp_path: Path) -> None:
    assert read_events(tmp_path / "a.jsonl") == [] and read_spans(tmp_path / "a.jsonl") == ([], 0)
