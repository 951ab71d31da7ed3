"""The timeline of a run: all workers' spans and events in one file that Perfetto (ui.perfetto.dev) opens."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from shoal.launch.logs import last_session, read_events, read_spans
from shoal.report.text import to_json
from shoal.trace import timeline
from shoal.worker import RunFolder

SPAN_LIMIT = 1_000_000
"""Spans in one timeline, shared out evenly; the tools that show it do not take more."""
HIDDEN = frozenset({"take", "digest"})
"""Events that only a replay needs; there may be one per message."""


def write_timeline(folder: RunFolder, peers: Sequence[str]) -> Path:
    """Merge what `peers` left in `folder` into ``timeline.json``, whole or not at all, and return its path.

    Peers that left nothing, or a last line that is torn, are no obstacle: a failed run has a timeline too. Spans that
    were dropped for want of room are counted under ``otherData``.
    """
    spans, dropped, limit = [], {}, SPAN_LIMIT // max(1, len(peers))
    for peer in sorted(peers):
        found, lost = read_spans(folder.spans(peer))
        spans += found[:limit]
        if missing := lost + max(0, len(found) - limit):
            dropped[peer] = missing
    logs = last_session({peer: read_events(folder.events(peer)) for peer in sorted(peers)})
    shown = [event for events in logs.values() for event in events if event.kind not in HIDDEN]
    out = timeline(spans, shown)
    if dropped:
        out["otherData"] = {"dropped spans": dropped}
    aside = folder.timeline.with_name(folder.timeline.name + ".tmp")
    with aside.open("w", encoding="utf-8") as file:
        file.write(to_json(out))
    os.replace(aside, folder.timeline)
    return folder.timeline
