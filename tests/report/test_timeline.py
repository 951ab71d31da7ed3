from __future__ import annotations

import json
from pathlib import Path

import pytest

from shoal.launch.logs import EventLog, write_spans
from shoal.report import write_timeline
from shoal.trace import Event, Span
from shoal.worker import RunFolder


def _leave(folder: RunFolder, peer: str, *, dropped: int = 0) -> None:
    log = EventLog(folder.events(peer), session="s")
    for event in (Event(peer, "step", 0.5, {"step": 1}), Event(peer, "take", 0.6, {"source": "b"})):
        log(event)
    log.close()
    with folder.spans(peer).open("w") as file:
        write_spans(
            file, [Span(peer, "compute", "forward", 0.0, 0.25, {"step": 1, "loss": float("nan")})], dropped=dropped
        )


def test_timeline_merges_what_peers_left(tmp_path: Path) -> None:
    """Cases I3, I4: valid JSON, also where one peer left a torn line and another nothing at all."""
    folder = RunFolder(tmp_path).make()
    _leave(folder, "a", dropped=7)
    _leave(folder, "b")
    with folder.spans("b").open("a") as file:
        file.write('{"lane":"compute","na')
    write_timeline(folder, ["c", "b", "a"])
    out = json.loads(folder.timeline.read_text(), parse_constant=_refuse)
    events = out["traceEvents"]
    assert {e["args"]["name"] for e in events if e["name"] == "process_name"} == {"a", "b"}
    assert [(e["name"], e["ts"], e["dur"]) for e in events if e["ph"] == "X"] == [("forward", 0.0, 250_000.0)] * 2
    assert [e["name"] for e in events if e["ph"] == "i"] == ["step", "step"]
    assert out["otherData"] == {"dropped spans": {"a": 7}}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["checkpoints", "events", "spans", "timeline.json"]


def test_timeline_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.report.timeline.SPAN_LIMIT", 4)
    folder = RunFolder(tmp_path).make()
    for peer in ("a", "b"):
        with folder.spans(peer).open("w") as file:
            write_spans(file, [Span(peer, "compute", "forward", float(n), n + 0.5) for n in range(3)])
    out = json.loads(write_timeline(folder, ["a", "b"]).read_text())
    assert sum(event["ph"] == "X" for event in out["traceEvents"]) == 4
    assert out["otherData"] == {"dropped spans": {"a": 1, "b": 1}}


def _refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is not JSON")
