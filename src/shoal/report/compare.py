"""Two runs in figures that can be compared: a prediction and what came of it, or two ways to do the same.

`compare` is pure: it takes what `summarise` read of each run and gives a `Comparison`, for people (`side_by_side`),
for scripts (`Comparison.to_json`) and for benchmarks.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from shoal.report.lanes import WARMUP, Busy, Step
from shoal.report.measured import Measured

LANES = ("compute", "update", "serve", "send", "wait")
"""The order in which lanes are told; others come after them."""

NAMES = frozenset({"name", "folder", "cluster"})
"""Keys of a job or cluster that name things: the contents of the clusters are compared, not their paths."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """Seconds per step of one peer. `computing_s` and `exposed_s` are None where no spans tell of it."""

    step_s: float
    computing_s: float | None
    exposed_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What a run did per step, over the compared steps. Means are over steps first, then over peers.

    Args:
        steps: how many of the compared steps somebody timed.
        step_s: 10th, 50th and 90th percentile, over all steps of all peers; empty without any.
        lane_s: lane → seconds in which it was busy; `lane_share`: the same as a share of the step.
        hidden_s: seconds in which a peer sent or waited while it computed, `exposed_s`: while it did not.
        other_s: seconds in which it did neither: Python, data, evaluation, checkpoints.
    """

    steps: int
    step_s: Mapping[int, float]
    workers: Mapping[str, Worker]
    sent_bytes: float | None
    received_bytes: float | None
    lane_s: Mapping[str, float]
    lane_share: Mapping[str, float]
    computing_s: float | None
    hidden_s: float | None
    exposed_s: float | None
    other_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One figure of both runs, compared as a `ratio` (b / a), or, for losses, as a `difference` (b - a)."""

    name: str
    a: float | None
    b: float | None
    unit: Literal["s", "B", "nats", ""]
    share: tuple[float | None, float | None] = (None, None)

    @property
    def ratio(self) -> float | None:
        if self.a is None or self.b is None or self.unit == "nats":
            return None
        return 1.0 if self.a == self.b else self.b / self.a if self.a else None

    @property
    def difference(self) -> float | None:
        return None if self.a is None or self.b is None or self.unit != "nats" else self.b - self.a


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Two runs, the figures of both, and where they part.

    Args:
        timed_steps: what `figures_a` and `figures_b` are of; empty if they have no timed step in common, and each run's
            figures are of its own.
        left_out: steps that were timed in both, but only one run evaluated or saved before them.
        losses: step → loss of a and of b, at every step that both logged, over the peers that logged it in both.
        worst_loss: the largest difference and its step; infinite where only one of the losses is a number.
        job, cluster: key → its value in a and in b, where they differ; None where it is not set.
    """

    a: Measured
    b: Measured
    figures_a: Figures
    figures_b: Figures
    rows: tuple[Row, ...]
    timed_steps: tuple[int, ...]
    left_out: tuple[int, ...]
    losses: Mapping[int, tuple[float, float]]
    worst_loss: tuple[float, int] | None
    job: Mapping[str, tuple[Any, Any]]
    cluster: Mapping[str, tuple[Any, Any]]

    def to_json(self) -> dict[str, Any]:
        """Everything, in seconds, bytes and nats."""
        return {
            "a": _described(self.a, self.figures_a),
            "b": _described(self.b, self.figures_b),
            "rows": [{**asdict(row), "ratio": row.ratio, "difference": row.difference} for row in self.rows],
            "timed_steps": list(self.timed_steps),
            "warmup_steps": WARMUP,
            "left_out": list(self.left_out),
            "losses": {str(step): list(pair) for step, pair in self.losses.items()},
            "worst_loss": self.worst_loss and {"apart": self.worst_loss[0], "step": self.worst_loss[1]},
            "job": {key: list(values) for key, values in self.job.items()},
            "cluster": {key: list(values) for key, values in self.cluster.items()},
        }


def compare(a: Measured, b: Measured) -> Comparison:
    """Put two runs side by side."""
    steps, left_out = _comparable(a, b)
    figures_a, figures_b = figures(a, steps or a.timed_steps), figures(b, steps or b.timed_steps)
    losses = _losses(a, b)
    apart = [(_distance(*pair), step) for step, pair in losses.items()]
    return Comparison(
        a=a,
        b=b,
        figures_a=figures_a,
        figures_b=figures_b,
        rows=tuple(_rows(a, b, figures_a, figures_b, losses)),
        timed_steps=tuple(sorted(steps)),
        left_out=tuple(sorted(left_out)),
        losses=losses,
        worst_loss=max(apart, key=lambda found: (found[0], -found[1]), default=None),
        job=_differing(a.job, b.job),
        cluster=_differing(a.cluster, b.cluster),
    )


def figures(run: Measured, steps: Iterable[int]) -> Figures:
    """The figures of `run` over these steps; a peer that timed some of them only counts with those."""
    wanted = frozenset(steps)
    timed = {peer: [step for n, step in known.items() if n in wanted] for peer, known in run.timed.items()}
    timed = {peer: known for peer, known in timed.items() if known}
    times = [step.seconds for known in timed.values() for step in known]
    told = [[step for step in known if step.busy is not None] for known in timed.values()]
    told = [known for known in told if known]
    lanes = dict.fromkeys(lane for known in told for lane in _lane_names(known))
    computing, exposed = _mean_of(told, lambda busy: busy.computing), _mean_of(told, lambda busy: busy.exposed)
    return Figures(
        steps=len(wanted & run.timed_steps),
        step_s={share: _percentile(times, share) for share in (10, 50, 90)} if times else {},
        workers={peer: _worker(known) for peer, known in timed.items()},
        sent_bytes=_mean_of(told, lambda busy: busy.sent_bytes),
        received_bytes=_mean_of(told, lambda busy: busy.received_bytes),
        lane_s={lane: statistics.fmean(_lane(known, lane)[0] for known in told) for lane in lanes},
        lane_share={lane: statistics.fmean(_lane(known, lane)[1] for known in told) for lane in lanes},
        computing_s=computing,
        hidden_s=_mean_of(told, lambda busy: busy.hidden),
        exposed_s=exposed,
        other_s=None if computing is None or exposed is None else _rest(_seconds(told), computing + exposed),
    )


def _comparable(a: Measured, b: Measured) -> tuple[frozenset[int], frozenset[int]]:
    """The steps that can be compared, and those that cannot, since only one run evaluated or saved before them."""
    common = a.timed_steps & b.timed_steps
    uneven = common & (a.interrupted ^ b.interrupted)
    return (common - uneven, uneven) if common - uneven else (common, frozenset())


def _rows(
    a: Measured, b: Measured, of_a: Figures, of_b: Figures, losses: Mapping[int, tuple[float, float]]
) -> Iterator[Row]:
    if losses:
        last = max(losses)
        yield Row(name=f"loss at step {last}", a=losses[last][0], b=losses[last][1], unit="nats")
    yield from _held_out(a, b)
    for name, share in (("step time, median", 50), ("  10th percentile", 10), ("  90th percentile", 90)):
        yield Row(name=name, a=of_a.step_s.get(share), b=of_b.step_s.get(share), unit="s")
    yield Row(name="sent per step", a=of_a.sent_bytes, b=of_b.sent_bytes, unit="B")
    yield Row(name="received per step", a=of_a.received_bytes, b=of_b.received_bytes, unit="B")
    for lane in _in_order({**of_a.lane_s, **of_b.lane_s}):
        shares = of_a.lane_share.get(lane), of_b.lane_share.get(lane)
        if any(shares):
            yield Row(name=f"{lane} lane", a=_of_lane(of_a, lane), b=_of_lane(of_b, lane), unit="s", share=shares)
    yield Row(name="computing", a=of_a.computing_s, b=of_b.computing_s, unit="s")
    yield Row(name="communication hidden", a=of_a.hidden_s, b=of_b.hidden_s, unit="s")
    yield Row(name="communication exposed", a=of_a.exposed_s, b=of_b.exposed_s, unit="s")
    yield Row(name="neither", a=of_a.other_s, b=of_b.other_s, unit="s")
    if a.empty_spans or b.empty_spans:
        yield Row(name="spans without duration", a=float(a.empty_spans), b=float(b.empty_spans), unit="")


def _held_out(a: Measured, b: Measured) -> Iterator[Row]:
    """At the end of both; where they ended at different steps, at the last that both evaluated as well."""
    ends = [max(run.held_out, default=None) for run in (a, b)]
    common = max(a.held_out.keys() & b.held_out.keys(), default=None)
    if common is not None and ends != [common, common]:
        name = f"held-out loss at step {common}"
        yield Row(name=name, a=a.held_out[common], b=b.held_out[common], unit="nats")
    last = [None if end is None else run.held_out[end] for run, end in zip((a, b), ends, strict=True)]
    yield Row(name="held-out loss at the end", a=last[0], b=last[1], unit="nats")


def _in_order(lanes: Iterable[str]) -> list[str]:
    return sorted(lanes, key=lambda lane: (LANES.index(lane) if lane in LANES else len(LANES), lane))


def _of_lane(run: Figures, lane: str) -> float | None:
    """A lane that a run never used was busy for no time, if its spans are known at all."""
    return run.lane_s.get(lane, 0.0 if run.computing_s is not None else None)


def _losses(a: Measured, b: Measured) -> dict[int, tuple[float, float]]:
    """Losses of both at every common step. If the runs have the same peers, a peer whose log lacks the step in one run
    is left out in both: else the loss of half a batch would be compared with that of the whole one."""
    out = {}
    for step in sorted(a.losses.keys() & b.losses.keys()):
        of_a, of_b = a.losses[step], b.losses[step]
        if a.peers == b.peers:
            both = of_a.keys() & of_b.keys()
            of_a, of_b = ({peer: told[peer] for peer in a.peers if peer in both} for told in (of_a, of_b))
        if of_a and of_b:
            out[step] = (_loss(of_a), _loss(of_b))
    return out


def _loss(parts: Mapping[str, tuple[float, float]]) -> float:
    return sum(loss for loss, _ in parts.values()) / sum(weight for _, weight in parts.values())


def _distance(a: float, b: float) -> float:
    """How far two losses are apart; NaN equals NaN and nothing else."""
    if a == b or (math.isnan(a) and math.isnan(b)):
        return 0.0
    return abs(a - b) if math.isfinite(a) and math.isfinite(b) else math.inf


def _differing(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Key → both values, where they differ. A device or link that only one file has is one key, with all of its own."""
    entries_a, entries_b = ({_entry(key) for key in keys} for keys in (a, b))
    out: dict[str, tuple[Any, Any]] = {}
    for key in dict.fromkeys([*a, *b]):
        entry = _entry(key)
        if entry and entry in entries_a ^ entries_b:
            of = a if entry in entries_a else b
            told = {name.removeprefix(f"{entry}."): value for name, value in of.items() if _entry(name) == entry}
            out[entry] = (told, None) if of is a else (None, told)
        elif key not in NAMES and a.get(key) != b.get(key):
            out[key] = (a.get(key), b.get(key))
    return out


def _entry(key: str) -> str:
    """``device[a].speed`` → ``device[a]``; empty for a key of no array of tables."""
    return key[: key.rindex("]") + 1] if "]" in key else ""


def _percentile(values: list[float], share: int) -> float:
    if len(values) < 2:
        return values[0]
    return statistics.quantiles(values, n=100, method="inclusive")[share - 1]


def _worker(steps: list[Step]) -> Worker:
    told = [step.busy for step in steps if step.busy is not None]
    return Worker(
        step_s=statistics.median(step.seconds for step in steps),
        computing_s=statistics.fmean(busy.computing for busy in told) if told else None,
        exposed_s=statistics.fmean(busy.exposed for busy in told) if told else None,
    )


def _mean_of(told: list[list[Step]], what: Callable[[Busy], float]) -> float | None:
    """The mean over each peer's steps, then over peers."""
    means = [statistics.fmean(what(step.busy) for step in steps if step.busy is not None) for steps in told]
    return statistics.fmean(means) if means else None


def _seconds(told: list[list[Step]]) -> float:
    return statistics.fmean(statistics.fmean(step.seconds for step in steps) for steps in told)


def _rest(whole: float, part: float) -> float:
    """What `part` leaves of `whole`; nothing where rounding alone leaves something."""
    return 0.0 if math.isclose(whole, part, rel_tol=1e-9) else max(0.0, whole - part)


def _lane_names(steps: list[Step]) -> Iterator[str]:
    for step in steps:
        if step.busy is not None:
            yield from step.busy.lanes


def _lane(steps: list[Step], lane: str) -> tuple[float, float]:
    """Seconds per step in which a peer's lane was busy, and which share of its time that is."""
    busy = sum(step.busy.lanes.get(lane, 0.0) for step in steps if step.busy is not None)
    return busy / len(steps), busy / sum(step.seconds for step in steps)


def _described(run: Measured, found: Figures) -> dict[str, Any]:
    return {
        "folder": run.folder,
        "world": run.world,
        "simulated": run.simulated,
        "status": run.status,
        "cluster": run.cluster_name,
        "peers": list(run.peers),
        "steps": [run.steps[0], run.steps[-1]] if run.steps else None,
        "held_out": {str(step): loss for step, loss in run.held_out.items()},
        "spans": run.spans,
        "spans_without_duration": run.empty_spans,
        "notes": list(run.notes),
        "figures": asdict(found),
    }
