"""Progress while a run goes on: a live display on a terminal, a line per report elsewhere, or JSON lines.

`Progress` keeps what the leader's reports said; the displays only show it, and the summary is made from it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, TextIO

from rich.console import Console, Group
from rich.live import Live as RichLive
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from shoal.report.text import baselines, clock, count, nats, size, to_json
from shoal.units import show_seconds
from shoal.worker import Report


@dataclass(slots=True, kw_only=True)
class Progress:
    """What is known of a run, from its leader's reports. Losses are nats per token, `seconds` the world's time.

    Args:
        clock: wall clock in seconds, from which the time left is computed.
    """

    clock: Callable[[], float] = time.monotonic
    peers: tuple[str, ...] = ()
    steps: int = 0
    first_step: int = 0
    step: int = 0
    parameters: int = 0
    tokens_per_step: int = 0
    loss: float | None = None
    held_out: float | None = None
    held_out_step: int | None = None
    baselines: Mapping[str, float] = field(default_factory=dict)
    tokens_per_s: float | None = None
    sent_bytes: int = 0
    received_bytes: int = 0
    seconds: float = 0.0
    checkpoint: str | None = None
    sample: str | None = None
    started: float | None = None

    def __call__(self, report: Report) -> None:
        """Take in what `report` says."""
        fields = report.fields
        match report.kind:
            case "start":
                self.started = self.clock()
                self.peers = tuple(fields["peers"])
                self.steps, self.first_step, self.step = fields["steps"], fields["first_step"], fields["first_step"]
                self.parameters, self.tokens_per_step = fields["parameters"], fields["tokens_per_step"]
                self.baselines = fields.get("baselines") or {}
            case "step":
                self.step, self.loss, self.tokens_per_s = fields["step"], fields["loss"], fields["tokens_per_s"]
                self.sent_bytes, self.received_bytes = fields["sent_bytes"], fields["received_bytes"]
                self.seconds = fields["seconds"]
            case "eval":
                self.held_out, self.held_out_step = fields["loss"], fields["step"]
                self.baselines = fields.get("baselines") or self.baselines
            case "checkpoint":
                self.checkpoint = fields["path"]
            case "sample":
                self.sample = fields["text"]
            case "done":
                self.step, self.seconds = fields["step"], fields["seconds"]
            case "stopping":
                pass

    @property
    def time_left(self) -> float | None:
        """Wall-clock seconds to the last step at the speed so far, or None before the first report of a step."""
        done = self.step - self.first_step
        if self.started is None or done <= 0:
            return None
        return (self.clock() - self.started) / done * (self.steps - self.step)


class Display:
    """Shows the reports of one run. Entered while the run goes on."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress

    def __enter__(self) -> Display:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        """Leaves the terminal as a line-by-line one."""

    def __call__(self, report: Report) -> None:
        """Show `report`, which `progress` has taken in already."""
        raise NotImplementedError

    def note(self, text: str) -> None:
        """Say something beside the reports (where the run's folder is)."""
        raise NotImplementedError


class JsonLines(Display):
    """One JSON object per report and nothing else, for scripts."""

    def __init__(self, progress: Progress, out: TextIO | None = None) -> None:
        super().__init__(progress)
        self._out = out

    def __call__(self, report: Report) -> None:
        self.write({"kind": report.kind, **report.fields})

    def note(self, text: str) -> None:
        """Scripts find what is said here in the last line, the summary."""

    def write(self, line: Mapping[str, Any]) -> None:
        print(to_json(line), file=self._out or sys.stdout, flush=True)


class Plain(Display):
    """One line per report, for logs and pipes."""

    def __init__(self, progress: Progress, console: Console) -> None:
        super().__init__(progress)
        self._console = console

    def __call__(self, report: Report) -> None:
        line = _line(report, self.progress)
        if line:
            self.note(line)

    def note(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


class Live(Plain):
    """A bar with the latest figures at the bottom of a terminal; what is worth keeping scrolls above it."""

    def __init__(self, progress: Progress, console: Console) -> None:
        super().__init__(progress, console)
        self._live = RichLive(console=console, get_renderable=self._render, refresh_per_second=4, transient=True)

    def __enter__(self) -> Live:
        self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._live.stop()

    def __call__(self, report: Report) -> None:
        if report.kind != "step":
            super().__call__(report)

    def _render(self) -> Group:
        p = self.progress
        if p.started is None:
            return Group(Text("starting the workers …", style="dim"))
        left = p.time_left
        head = Table.grid(padding=(0, 2))
        head.add_row(
            Text(f"step {p.step}/{p.steps}", style="bold"),
            ProgressBar(total=max(1, p.steps), completed=p.step, width=40),
            Text("" if left is None else f"{clock(left)} left"),
        )
        figures = Table.grid(padding=(0, 2))
        figures.add_row("loss", Text(nats(p.loss), style="bold"), "held-out", nats(p.held_out), baselines(p.baselines))
        figures.add_row("speed", _speed(p), "sent", size(p.sent_bytes), f"received {size(p.received_bytes)}")
        return Group(head, figures)


def display(progress: Progress, *, as_json: bool = False, console: Console | None = None) -> Display:
    """The display for where standard output goes: JSON lines if asked, live on a terminal, else plain lines."""
    if as_json:
        return JsonLines(progress)
    console = console or Console()
    return Live(progress, console) if console.is_terminal else Plain(progress, console)


def _speed(p: Progress) -> str:
    """Tokens per second, or, where no tokens are counted (timing mode), how long a step takes."""
    if p.tokens_per_s:
        return f"{count(p.tokens_per_s)} tokens/s"
    return f"{show_seconds(p.seconds / p.step)} per step" if p.step and p.seconds else "–"


def _line(report: Report, p: Progress) -> str:
    """The line that says what `report` says; empty where the summary will say it."""
    fields = report.fields
    match report.kind:
        case "start":
            where = f", from step {p.first_step}" if p.first_step else ""
            work = f"{p.parameters:,} parameters, {p.steps:,} steps of {p.tokens_per_step:,} tokens"
            return f"{len(p.peers)} workers, {work}{where}"
        case "step":
            left = f"  {clock(p.time_left)} left" if p.time_left is not None else ""
            moved = f"sent {size(p.sent_bytes)}  received {size(p.received_bytes)}"
            loss = f"loss {nats(p.loss)}  " if p.loss is not None else ""
            return f"step {p.step}/{p.steps}  {loss}{_speed(p)}  {moved}{left}"
        case "eval":
            beside = f"  ({baselines(p.baselines)})" if p.baselines else ""
            if fields.get("consensus"):
                beside += f"  consensus distance {fields['consensus']:.3g}"
            return f"step {fields['step']}/{p.steps}  held-out loss {nats(fields['loss'])}{beside}"
        case "checkpoint":
            return f"step {fields['step']}/{p.steps}  checkpoint {fields['path']}"
        case "stopping":
            return f"asked to stop: all workers have stopped after step {fields['step']}"
        case "sample" | "done":
            return ""
