"""What a run folder says about time, bytes and losses, step by step, whatever world the run lived in."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.errors import UserError
from shoal.launch.logs import last_session, read_events, read_spans
from shoal.launch.prepare import read
from shoal.trace import Event, Span
from shoal.worker import RunFolder

WARMUP = 3
"""Steps that are left out of figures of time: they load code, fill caches and open connections."""

COMPUTING = ("compute", "update")
TALKING = ("send", "wait")
SIMULATED = ("virtual", "timing")

Interval = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One run. Seconds and bytes are of the world that the run lived in.

    Args:
        world: as in its summary; ``"unknown"`` for a run that did not live to write one.
        job: dotted key → value, of the job file.
        peers: those of the plan.
        steps: that every peer did, in the newest session.
        loss: step → loss, nats per unit of weight, over the peers that logged it.
        step_s: the timed steps of all peers, `WARMUP` left out.
        peer_step_s: peer → median of its timed steps.
        sent_bytes: per timed step and peer.
        lane_s: lane → seconds per timed step in which it was busy, mean over peers; overlaps count once.
        exposed_s: seconds per timed step in which a peer neither computed nor updated.
        hidden_s: seconds per timed step in which a peer sent or waited while it computed.
        notes: what is missing or odd.
    """

    folder: str
    world: str
    job: Mapping[str, Any]
    peers: tuple[str, ...]
    steps: int
    loss: Mapping[int, float]
    held_out_loss: float | None
    step_s: tuple[float, ...]
    peer_step_s: Mapping[str, float]
    sent_bytes: float | None
    lane_s: Mapping[str, float]
    exposed_s: float | None
    hidden_s: float | None
    notes: tuple[str, ...]

    @property
    def simulated(self) -> bool:
        return self.world in SIMULATED

    @property
    def median_step_s(self) -> float | None:
        return statistics.median(self.step_s) if self.step_s else None


def measured(folder: RunFolder) -> Measured:
    """Read the newest session of a run; what is missing or torn is left out and noted.

    Raises:
        UserError: `folder` is not the folder of a run.
    """
    prepared = read(folder)
    peers = prepared.plan.peers
    logs = last_session({peer: read_events(folder.events(peer)) for peer in peers})
    summary = _summary(folder)
    notes = [f"{peer} logged no step" for peer in peers if not _ends(logs[peer])]
    ends = {peer: found for peer in peers if (found := _ends(logs[peer]))}
    lanes = [_lanes(folder, peer, at, notes) for peer, at in ends.items() if len(at) > WARMUP]
    timed = {peer: _durations(at) for peer, at in ends.items() if len(at) > WARMUP}
    if ends and not timed:
        notes.append(f"fewer than {WARMUP + 1} steps: nothing to time")
    known = [found for found in lanes if found is not None]
    return Measured(
        folder=str(folder.root),
        world=summary.get("world", "unknown"),
        job=_flat(prepared.job.model_dump(mode="json")),
        peers=peers,
        steps=min((len(at) for at in ends.values()), default=0),
        loss=_losses(logs.values()),
        held_out_loss=summary.get("held_out_loss"),
        step_s=tuple(step for steps in timed.values() for step in steps),
        peer_step_s={peer: statistics.median(steps) for peer, steps in timed.items()},
        sent_bytes=_mean(found["sent_bytes"] for found in known),
        lane_s={lane: _mean(found.get(lane, 0.0) for found in known) or 0.0 for lane in _names(known)},
        exposed_s=_mean(found["exposed"] for found in known),
        hidden_s=_mean(found["hidden"] for found in known),
        notes=tuple(notes),
    )


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """The same points as disjoint intervals, in order."""
    out: list[Interval] = []
    for start, stop in sorted(intervals):
        if out and start <= out[-1][1]:
            out[-1] = (out[-1][0], max(out[-1][1], stop))
        elif stop > start:
            out.append((start, stop))
    return out


def length(intervals: Iterable[Interval]) -> float:
    return sum(stop - start for start, stop in intervals)


def common(a: Sequence[Interval], b: Sequence[Interval]) -> list[Interval]:
    """The points that are in both; `a` and `b` are disjoint and in order."""
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


def _lanes(folder: RunFolder, peer: str, ends: Sequence[float], notes: list[str]) -> dict[str, float] | None:
    """Seconds per timed step of each lane of one peer, and what follows from them; None without spans."""
    spans, dropped = read_spans(folder.spans(peer))
    if not spans:
        notes.append(f"{peer} left no spans")
        return None
    if dropped:
        notes.append(f"{peer} left out {dropped:,} spans for want of room: its lanes and bytes are too low")
    empty = sum(span.stop <= span.start for span in spans)
    if empty > len(spans) / 2:
        notes.append(f"{empty:,} of {len(spans):,} spans of {peer} have no duration")
    window = (ends[WARMUP - 1], ends[-1])
    steps = len(ends) - WARMUP
    busy: dict[str, list[Interval]] = {}
    for span in spans:
        busy.setdefault(span.lane, []).append((max(span.start, window[0]), min(span.stop, window[1])))
    joined = {lane: union(intervals) for lane, intervals in busy.items()}
    computing = union(i for lane in COMPUTING for i in joined.get(lane, ()))
    talking = union(i for lane in TALKING for i in joined.get(lane, ()))
    found = {lane: length(intervals) / steps for lane, intervals in joined.items()}
    found["sent_bytes"] = sum(_sent(span) for span in spans if window[0] < span.stop <= window[1]) / steps
    found["exposed"] = (window[1] - window[0] - length(computing)) / steps
    found["hidden"] = length(common(talking, computing)) / steps
    return found


def _sent(span: Span) -> float:
    return float(span.args.get("bytes", 0)) if span.lane == "send" else 0.0


def _names(found: Sequence[Mapping[str, float]]) -> list[str]:
    names = dict.fromkeys(lane for lanes in found for lane in lanes)
    return [lane for lane in names if lane not in ("sent_bytes", "exposed", "hidden")]


def _ends(events: Iterable[Event]) -> list[float]:
    """When each step of a peer ended."""
    return [event.at for event in events if event.kind == "step"]


def _durations(ends: Sequence[float]) -> list[float]:
    return [stop - start for start, stop in zip(ends[WARMUP - 1 :], ends[WARMUP:], strict=False)]


def _losses(logs: Iterable[Sequence[Event]]) -> dict[int, float]:
    """Step → mean loss; steps without any weight (timing mode) have none."""
    sums: dict[int, list[float]] = {}
    for events in logs:
        for event in events:
            if event.kind == "step":
                total = sums.setdefault(event.fields["step"], [0.0, 0.0])
                total[0] += float.fromhex(event.fields["loss"])
                total[1] += event.fields["weight"]
    return {step: loss / weight for step, (loss, weight) in sorted(sums.items()) if weight}


def _summary(folder: RunFolder) -> dict[str, Any]:
    with suppress(OSError, ValueError):
        found = json.loads(folder.summary.read_text(encoding="utf-8"))
        return found if isinstance(found, dict) else {}
    return {}


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    if isinstance(value, Mapping) and value:
        return {key: v for name, inner in value.items() for key, v in _flat(inner, f"{prefix}{name}.").items()}
    return {prefix.removesuffix("."): value}


def _mean(values: Iterable[float]) -> float | None:
    found = list(values)
    return statistics.fmean(found) if found else None


def run_folder(path: Path) -> RunFolder:
    """The run at `path`, or the newest one if `path` holds several (``runs/job``).

    Raises:
        UserError: there is none.
    """
    folder = RunFolder(path)
    found = folder if folder.job.is_file() else RunFolder.latest(path.parent, path.name)
    if found is None:
        raise UserError("not a run", file=str(path), mend="name a folder like runs/job/1")
    return found
