"""Two runs side by side: a prediction and what came of it, or two ways to do the same."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from shoal.report.measured import Measured
from shoal.units import show_bytes, show_seconds

NAMES = ("name", "base", "run.steps", "cluster")
"""Keys of a job that say nothing of what it computes, or how."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One figure of both runs. `ratio` is b / a, where that means something."""

    name: str
    a: float | None
    b: float | None
    unit: str

    @property
    def ratio(self) -> float | None:
        return self.b / self.a if self.a and self.b is not None else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Figures of both runs, and where their jobs and losses part.

    Args:
        job: key → its value in a and in b, where they differ.
        worst_loss: largest difference of losses at a common step, and that step.
    """

    a: Measured
    b: Measured
    rows: tuple[Row, ...]
    job: Mapping[str, tuple[Any, Any]]
    common_steps: int
    worst_loss: tuple[float, int] | None

    def to_json(self) -> dict[str, Any]:
        return {
            "a": _plain(self.a),
            "b": _plain(self.b),
            "rows": [{**asdict(row), "ratio": row.ratio} for row in self.rows],
            "job": {key: list(values) for key, values in self.job.items()},
            "common_steps": self.common_steps,
            "worst_loss": self.worst_loss,
        }

    def lines(self) -> list[str]:
        """A table for people. A column holds figures of one kind only, simulated or measured: its head says which."""
        table = [("", _head(self.a), _head(self.b), "B / A")]
        table += [("steps", str(self.a.steps), str(self.b.steps), "")]
        table += [(row.name, _show(row.a, row.unit), _show(row.b, row.unit), _times(row.ratio)) for row in self.rows]
        widths = [max(len(line[n]) for line in table) for n in range(4)]
        rows = [
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in table
        ]
        lines = [f"A  {self.a.folder}", f"B  {self.b.folder}", "", *rows]
        return [*lines, "", *self._words()]

    def _words(self) -> Iterator[str]:
        if self.worst_loss is None:
            yield "losses: no step in common"
        elif self.worst_loss[0] == 0.0:
            yield f"losses: equal to the bit at all {self.common_steps} common steps"
        else:
            apart, step = self.worst_loss
            yield f"losses: at {self.common_steps} common steps {apart:.3g} apart at most, at step {step}"
        for letter, run in (("A", self.a), ("B", self.b)):
            if slow := _slowest(run):
                yield f"slowest worker of {letter}: {slow[0]}, {slow[1]:.0%} above the median"
        for key, (a, b) in self.job.items():
            yield f"job: {key} is {a!r} in A, {b!r} in B"
        for letter, run in (("A", self.a), ("B", self.b)):
            yield from (f"note on {letter}: {note}" for note in run.notes)


def compare(a: Measured, b: Measured) -> Comparison:
    """Put two runs side by side."""
    steps = sorted(a.loss.keys() & b.loss.keys())
    apart = [(abs(a.loss[step] - b.loss[step]), step) for step in steps]
    keys = [key for key in dict.fromkeys([*a.job, *b.job]) if key not in NAMES]
    return Comparison(
        a=a,
        b=b,
        rows=tuple(_rows(a, b, steps[-1] if steps else None)),
        job={key: (a.job.get(key), b.job.get(key)) for key in keys if a.job.get(key) != b.job.get(key)},
        common_steps=len(steps),
        worst_loss=max(apart, key=lambda found: (found[0], -found[1])) if apart else None,
    )


def _rows(a: Measured, b: Measured, last: int | None) -> Iterator[Row]:
    if last is not None:
        yield Row(name=f"loss at step {last}", a=a.loss[last], b=b.loss[last], unit="nats")
    yield Row(name="held-out loss", a=a.held_out_loss, b=b.held_out_loss, unit="nats")
    for name, share in (("step time, median", 50), ("  10th percentile", 10), ("  90th percentile", 90)):
        yield Row(name=name, a=_percentile(a.step_s, share), b=_percentile(b.step_s, share), unit="s")
    yield Row(name="sent per step and worker", a=a.sent_bytes, b=b.sent_bytes, unit="B")
    for lane in dict.fromkeys([*a.lane_s, *b.lane_s]):
        busy = a.lane_s.get(lane, 0.0 if a.lane_s else None), b.lane_s.get(lane, 0.0 if b.lane_s else None)
        yield Row(name=f"{lane} lane, per step", a=busy[0], b=busy[1], unit="s")
    yield Row(name="not computing, per step", a=a.exposed_s, b=b.exposed_s, unit="s")
    yield Row(name="communication hidden", a=a.hidden_s, b=b.hidden_s, unit="s")


def _percentile(values: tuple[float, ...], share: int) -> float | None:
    if len(values) < 2:
        return values[0] if values else None
    return statistics.quantiles(values, n=100, method="inclusive")[share - 1]


def _slowest(run: Measured) -> tuple[str, float] | None:
    """The peer whose steps take longest and by how much, where that is more than a few percent."""
    if len(run.peer_step_s) < 2:
        return None
    middle = statistics.median(run.peer_step_s.values())
    peer = max(run.peer_step_s, key=lambda peer: run.peer_step_s[peer])
    above = run.peer_step_s[peer] / middle - 1 if middle else 0.0
    return (peer, above) if above > 0.05 else None


def _head(run: Measured) -> str:
    kind = {"unknown": "?"}.get(run.world, "simulated" if run.simulated else "measured")
    return f"{run.world} ({kind}), {len(run.peers)} workers"


def _show(value: float | None, unit: str) -> str:
    if value is None:
        return "–"
    return {"s": show_seconds, "B": show_bytes}.get(unit, "{:.4f}".format)(value)


def _times(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.3f}"


def _plain(run: Measured) -> dict[str, Any]:
    told = asdict(run)
    del told["job"]
    return {**told, "step_s": statistics.median(run.step_s) if run.step_s else None}
