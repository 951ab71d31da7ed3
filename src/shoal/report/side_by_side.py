"""A comparison of two runs as people read it: one table, and what no table can say in words."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from shoal.report.compare import Comparison, Figures, Row, Worker
from shoal.report.lanes import WARMUP
from shoal.report.measured import UNKNOWN, Measured
from shoal.units import show_bytes, show_seconds, show_share

WORKERS_SHOWN = 8
KEYS_SHOWN = 12
APART = 0.05
"""A worker that is less above the median than this is not called slow."""

Cells = tuple[str, str, str, str]


def show(found: Comparison, console: Console) -> None:
    """Print `found`: with emphasis on a terminal, elsewhere as plain text."""
    if not console.is_terminal:
        console.print("\n".join(lines(found)), markup=False, highlight=False, soft_wrap=True)
        return
    head, *rows = table(found)
    drawn = Table(*head, box=None, padding=(0, 2, 0, 0), header_style="bold")
    for name, a, b, compared in rows:
        drawn.add_row(
            Text(name), Text(a), Text(b), Text(compared, style="bold" if name.startswith("step time") else "")
        )
    console.print(drawn)
    console.print()
    console.print("\n".join(words(found)), markup=False, highlight=False, soft_wrap=True)


def lines(found: Comparison) -> list[str]:
    """The table and the words, a line each, for logs and pipes."""
    cells = table(found)
    widths = [max(len(row[n]) for row in cells) for n in range(4)]
    rows = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]
    return [*rows, "", *words(found)]


def table(found: Comparison) -> list[Cells]:
    """Name, A, B, and B / A (of losses B - A). A column is of one kind, simulated or measured: its head says which."""
    a, b = found.a, found.b
    rows: list[Cells] = [
        ("", f"A: {_kind(a)}", f"B: {_kind(b)}", "B / A"),
        ("run", a.folder, b.folder, ""),
        ("world", a.world, b.world, ""),
        ("ended", a.status, b.status, ""),
        ("cluster", a.cluster_name, b.cluster_name, ""),
        ("workers", str(len(a.peers)), str(len(b.peers)), ""),
        ("steps logged", _range(a.steps), _range(b.steps), ""),
        ("steps timed", str(found.figures_a.steps), str(found.figures_b.steps), ""),
    ]
    for row in found.rows:
        rows.append(_cells(row))
        if row.name.strip() == "90th percentile":
            rows += [_cells(worker) for worker in _workers(found.figures_a.workers, found.figures_b.workers)]
    return rows


def words(found: Comparison) -> Iterator[str]:
    """How the runs were compared, how far their losses are apart, who is slow, what differs, and what is missing."""
    yield from _how(found)
    yield from _losses(found)
    for letter, run in (("A", found.figures_a), ("B", found.figures_b)):
        yield from (f"{text} of {letter}: {who}" for text, who in _slowest(run))
    yield from _differences("job", found.job)
    yield from _differences("cluster", found.cluster)
    for letter, measured in (("A", found.a), ("B", found.b)):
        yield from (f"note on {letter}: {note}" for note in measured.notes)


def _how(found: Comparison) -> Iterator[str]:
    warmup = f"the first {WARMUP} of each run left out as warm-up"
    if found.timed_steps:
        yield f"steps: times, bytes and lanes are per step and worker, over {_range(found.timed_steps)}, {warmup}"
    elif found.figures_a.steps or found.figures_b.steps:
        yield f"steps: no timed step in common, so each run's figures are over its own steps, {warmup}"
    if found.left_out:
        yield f"steps: {len(found.left_out)} left out, before which only one run evaluated or saved a checkpoint"


def _losses(found: Comparison) -> Iterator[str]:
    if found.worst_loss is None:
        yield "losses: no step in common"
        return
    apart, step = found.worst_loss
    far = (
        f"{apart:.3g} apart at most, at step {step}" if math.isfinite(apart) else f"only one is a number at step {step}"
    )
    equal = f"losses: equal to the bit at all {len(found.losses)} common steps"
    yield equal if apart == 0.0 else f"losses: at {len(found.losses)} common steps {far}"
    runs = (found.a, found.b)
    lacking = {peer for step in found.losses for run in runs for peer in run.peers if peer not in run.losses[step]}
    if lacking:
        yield f"losses: without those of {', '.join(sorted(lacking))} where a log lacks them"


def _slowest(run: Figures) -> Iterator[tuple[str, str]]:
    """Who takes longest per step, and who computes longest: where all wait for one another, only the latter differs."""
    steps = {peer: worker.step_s for peer, worker in run.workers.items()}
    computing = {peer: told.computing_s for peer, told in run.workers.items() if told.computing_s is not None}
    for text, seconds in (("slowest worker", steps), ("longest computing worker", computing)):
        if len(seconds) > 1:
            peer = max(seconds, key=lambda peer: seconds[peer])
            middle = statistics.median(seconds.values())
            above = seconds[peer] / middle - 1 if middle else 0.0
            if above > APART:
                yield text, f"{peer}, {show_seconds(seconds[peer])}, {above:.0%} above the median"


def _workers(a: Mapping[str, Worker], b: Mapping[str, Worker]) -> Iterator[Row]:
    """Step times of the workers, in their order; of many only the slowest."""
    peers = list(dict.fromkeys([*a, *b]))
    longest = [max((worker.step_s for worker in run.values()), default=0.0) for run in (a, b)]
    slowness = {
        peer: max(run[peer].step_s / most for run, most in zip((a, b), longest, strict=True) if peer in run)
        for peer in peers
    }
    shown = sorted(peers, key=lambda peer: -slowness[peer])[:WORKERS_SHOWN] if len(peers) > WORKERS_SHOWN else peers
    for peer in shown:
        times = [run[peer].step_s if peer in run else None for run in (a, b)]
        yield Row(name=f"  {peer}, median", a=times[0], b=times[1], unit="s")


def _differences(file: str, keys: Mapping[str, tuple[Any, Any]]) -> Iterator[str]:
    for key, (a, b) in list(keys.items())[:KEYS_SHOWN]:
        if isinstance(a, Mapping) or isinstance(b, Mapping):
            yield f"{file}: {key} is only in {'A' if b is None else 'B'}"
        else:
            yield f"{file}: {key} is {_value(a)} in A, {_value(b)} in B"
    if len(keys) > KEYS_SHOWN:
        yield f"{file}: {len(keys) - KEYS_SHOWN} more keys differ (--json names them all)"


def _value(value: Any) -> str:
    return "not set" if value is None else repr(value)


def _kind(run: Measured) -> str:
    return "of unknown kind" if run.world == UNKNOWN else "simulated" if run.simulated else "measured"


def _range(steps: Sequence[int]) -> str:
    if not steps:
        return "none"
    ends = f"step {steps[0]}" if len(steps) == 1 else f"steps {steps[0]} to {steps[-1]}"
    return ends if len(steps) == steps[-1] - steps[0] + 1 else f"{len(steps)} of {ends}"


def _cells(row: Row) -> Cells:
    shown = [_show(value, row.unit) for value in (row.a, row.b)]
    shares = [f"  {show_share(share)}" if share else "" for share in row.share]
    a, b = shown[0] + shares[0], shown[1] + shares[1]
    if row.difference is not None:
        return row.name, a, b, f"{row.difference:+.4f}"
    return row.name, a, b, "" if row.ratio is None else f"{row.ratio:.3f}"


def _show(value: float | None, unit: str) -> str:
    if value is None:
        return "–"
    match unit:
        case "s":
            return show_seconds(value) if value else "0 s"
        case "B":
            return show_bytes(value)
        case "nats":
            return f"{value:.4f}"
        case _:
            return f"{value:.0f}"
