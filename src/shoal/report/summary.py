"""The end of a run: what came of it, where things lie, and what to type next. Also written to ``summary.json``."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Literal

from shoal.launch.messages import Failure
from shoal.report.progress import Progress
from shoal.report.text import baselines, clock, count, size, to_json
from shoal.worker import Outcome, RunFolder

World = Literal["processes", "lab", "virtual", "timing"]
PACE_DEBT_LIMIT = 0.02
"""Beyond this share, a lab's figures of time are those of this machine, not of the cluster's devices."""

_MEANING = {
    "unigram": "how often each token occurs",
    "bigram": "how often each token follows the one before it",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What a run came to. Losses are nats per token; `seconds` is the world's time; `next` are commands to type.

    `pace_debt`: in a lab, by which share each worker's computations took longer than on its device.
    """

    name: str
    folder: str
    world: World
    status: Literal["done", "stopped", "failed"]
    exit_status: int
    workers: int
    step: int
    steps: int
    seconds: float
    train_loss: float | None
    held_out_loss: float | None
    baselines: Mapping[str, float]
    verdict: str
    tokens_per_s: float | None
    sent_bytes: int
    received_bytes: int
    checkpoint: str | None
    timeline: str
    metrics: str
    sample: str | None
    digests: Mapping[str, str]
    failures: tuple[Failure, ...]
    next: tuple[str, ...] = field(default=())
    pace_debt: Mapping[str, float] = field(default_factory=dict)

    def write(self, folder: RunFolder) -> None:
        """Write ``summary.json``, whole or not at all."""
        aside = folder.summary.with_name(folder.summary.name + ".tmp")
        aside.write_text(to_json(asdict(self), indent=1) + "\n", encoding="utf-8")
        os.replace(aside, folder.summary)

    def lines(self) -> list[str]:
        """The summary for a terminal, a label and a text per line."""
        rows = [*self._ending(), *self._learned(), *self._speed(), *self._files()]
        if self.sample:
            rows += [("sample", ""), *(("", f"| {_harmless(line)}") for line in self.sample.split("\n"))]
        rows += [("next" if n == 0 else "", command) for n, command in enumerate(self.next)]
        return [f"{label:<12}{text}".rstrip() for label, text in rows]

    def complaints(self) -> list[str]:
        """What went wrong, the cause first: a line per failure that names its worker."""
        return [f"{failure.peer}: {failure.text}" for failure in _grouped(self.failures)]

    def _ending(self) -> list[tuple[str, str]]:
        virtual = " of virtual time" if self.world in ("virtual", "timing") else ""
        spent = f"{self.step:,} of {self.steps:,} steps in {clock(self.seconds)}{virtual}"
        return [(self.status, f"{spent if self.steps else 'before the first step'}, {self.workers} workers")]

    def _learned(self) -> list[tuple[str, str]]:
        losses = [("held-out", self.held_out_loss), ("training", self.train_loss)]
        said = ", ".join(f"{name} {value:.4f}" for name, value in losses if value is not None)
        rows = [("loss", f"{said} nats per token")] if said else []
        if self.verdict:
            rows += [("" if rows else "loss", self.verdict)]
        return rows

    def _speed(self) -> list[tuple[str, str]]:
        moved = f"{size(self.sent_bytes)} sent, {size(self.received_bytes)} received"
        speed = f"{count(self.tokens_per_s)} tokens/s, " if self.tokens_per_s is not None else ""
        return [("speed", f"{speed}{moved}"), *self._pace()]

    def _pace(self) -> list[tuple[str, str]]:
        """A warning, if this machine could not compute as fast as the devices in the cluster file."""
        slow = {peer: debt for peer, debt in self.pace_debt.items() if debt > PACE_DEBT_LIMIT}
        if not slow:
            return []
        worst = max(slow, key=lambda peer: slow[peer])
        return [
            ("pace", f"NOT KEPT by {len(slow)} of {len(self.pace_debt)} workers: on this machine {worst} took"),
            ("", f"{slow[worst]:.0%} longer to compute than its device would; do not trust the times of this run"),
            ("", "(slower devices in the cluster file, fewer workers or a smaller batch would be kept)"),
        ]

    def _files(self) -> list[tuple[str, str]]:
        kept = [("checkpoint", self.checkpoint)] if self.checkpoint else []
        opens = f"{self.timeline} (open it at ui.perfetto.dev)"
        return [*kept, ("timeline", opens), ("metrics", self.metrics)]


def summarize(
    progress: Progress,
    *,
    name: str,
    folder: RunFolder,
    world: World,
    outcomes: Mapping[str, Outcome],
    failures: Sequence[Failure] = (),
    exit_status: int = 0,
    checkpoint: str | None = None,
    command: str,
    pace_debt: Mapping[str, float] | None = None,
) -> Summary:
    """Put together what `progress` saw and what the workers ended with.

    Args:
        checkpoint: the newest whole checkpoint in `folder`, for a run that did not live to name its own.
        command: the one that started the run, without options for resuming.
    """
    ends = [outcomes[peer] for peer in sorted(outcomes)]
    status: Literal["done", "stopped", "failed"] = "done"
    if exit_status != 0:
        stopped = any(end.stopped for end in ends) and not any(f.cause for f in failures)
        status = "stopped" if stopped or exit_status > 128 else "failed"
    held_out = next((e.eval_loss for e in ends if e.eval_loss is not None), progress.held_out)
    train_loss = next((e.train_loss for e in ends if e.train_loss is not None), progress.loss)
    step = max([progress.step, *(e.step for e in ends)])
    seconds = max([progress.seconds, *(e.seconds for e in ends)])
    done = (step - progress.first_step) * progress.tokens_per_step
    kept = next((e.checkpoint for e in ends if e.checkpoint), None) or progress.checkpoint or checkpoint
    return Summary(
        name=name,
        folder=str(folder.root),
        world=world,
        status=status,
        exit_status=exit_status,
        workers=len(progress.peers) or len(ends) + len(failures),
        step=step,
        steps=progress.steps,
        seconds=seconds,
        train_loss=train_loss,
        held_out_loss=held_out,
        baselines=dict(progress.baselines),
        verdict="" if status == "failed" else verdict(train_loss if held_out is None else held_out, progress.baselines),
        tokens_per_s=done / seconds if seconds > 0 and done > 0 else None,
        sent_bytes=sum(e.sent_bytes for e in ends) or progress.sent_bytes,
        received_bytes=sum(e.received_bytes for e in ends) or progress.received_bytes,
        checkpoint=kept,
        timeline=str(folder.timeline),
        metrics=str(folder.metrics),
        sample=progress.sample,
        digests={e.peer: e.digest for e in ends},
        failures=tuple(failures),
        next=_next(status, folder, world, command, progress.steps, kept),
        pace_debt=pace_debt or {},
    )


def verdict(loss: float | None, table: Mapping[str, float]) -> str:
    """`loss` next to what trivial models reach on the same corpus, in words; empty where there is nothing to say.

    A baseline is the entropy of a table of frequencies: no table of pairs reaches a loss below the bigram's.
    """
    if loss is None or not table:
        return ""
    beside = f"the corpus's {baselines(table).replace(', ', ' and ')}"
    beaten = [name for name, value in table.items() if loss < value]
    if not beaten:
        easiest = max(table, key=lambda name: table[name])
        return f"not yet below {beside}: it knows less than {_meaning(easiest)}"
    if len(beaten) == len(table):
        hardest = min(table, key=lambda name: table[name])
        return f"below {beside}: it knows more than {_meaning(hardest)}"
    best = min(beaten, key=lambda name: table[name])
    missed = min(set(table) - set(beaten), key=lambda name: -table[name])
    return f"next to {beside}: it knows more than {_meaning(best)}, not yet {_meaning(missed)}"


def _harmless(line: str) -> str:
    """A line that a model wrote, without characters that would do something to the terminal."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in line.expandtabs(4))


def _meaning(baseline: str) -> str:
    return _MEANING.get(baseline, f"the {baseline} baseline")


def _next(
    status: str, folder: RunFolder, world: World, command: str, steps: int, checkpoint: str | None
) -> tuple[str, ...]:
    replay = f"shoal replay {shlex.quote(str(folder.root))}"
    if world == "timing":
        return (command.replace(" --timing", ""),)
    resume = f"{command} --resume"
    if status == "done":
        return (f"{resume} --steps {2 * steps}", replay) if checkpoint and steps else (replay,)
    return (resume, replay) if checkpoint else (replay,)


def _grouped(failures: Sequence[Failure]) -> list[Failure]:
    """One failure for all workers that say the same (a data file that none of them finds)."""
    by_text: dict[str, list[Failure]] = {}
    for failure in failures:
        by_text.setdefault(failure.text, []).append(failure)
    return [replace(same[0], peer=", ".join(f.peer for f in same)) for same in by_text.values()]
