"""Running a prepared job in a world, with everything a person sees of it, to its exit status."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from types import TracebackType

from rich.console import Console

from shoal import lab as labs
from shoal.errors import ShoalError, UserError
from shoal.lab import Change
from shoal.launch.logs import EventLog, last_session, read_events, write_spans
from shoal.launch.messages import Failure, failure
from shoal.launch.prepare import Prepared
from shoal.launch.processes import child_command, launch
from shoal.launch.signals import StopSignals
from shoal.launch.torchrun import Place, assemble
from shoal.rehearse import Rehearsal, rehearse
from shoal.report import Metrics, Progress, display, summarize, write_timeline
from shoal.report.summary import World
from shoal.report.text import to_json
from shoal.state.checkpoint import latest
from shoal.worker import Outcome, Report
from shoal.worlds.rendezvous import Coordinator


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """How a run is shown. What to type next is made of `command`: what started it, without options for resuming."""

    world: World
    command: str
    as_json: bool = False


class Watching:
    """Progress and metrics while a run goes on; timeline and summary at its end, however it ends."""

    def __init__(self, prepared: Prepared, shown: Shown) -> None:
        self._prepared, self._shown = prepared, shown
        self._progress = Progress()
        self._metrics = Metrics(prepared.folder, tensorboard=prepared.job.run.tensorboard, resume=prepared.resume)
        self._display = display(self._progress, as_json=shown.as_json)
        self._stack = ExitStack()

    def __enter__(self) -> Watching:
        self._stack.enter_context(self._metrics)
        self._stack.enter_context(self._display)
        self._display.note(_decided(self._prepared))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._stack.close()

    def note(self, text: str) -> None:
        """Say something about this run that is no report."""
        self._display.note(text)

    def tell(self, report: Report) -> None:
        """Take in and show a report of the leader."""
        self._progress(report)
        self._metrics(report)
        self._display(report)
        if report.kind == "start" and self._prepared.resume and not report.fields["first_step"]:
            self._display.note("no whole checkpoint to resume from: starting with the first step")

    def finish(self, outcomes: Mapping[str, Outcome], failures: Sequence[Failure], status: int) -> int:
        """Write the timeline and the summary, show the summary, and return `status`."""
        folder = self._prepared.folder
        write_timeline(folder, self._prepared.plan.peers)
        if not outcomes:
            self._progress.step = max(self._progress.step, _steps_logged(self._prepared))
        summary = summarize(
            self._progress,
            name=self._prepared.job.name,
            folder=folder,
            world=self._shown.world,
            outcomes=outcomes,
            failures=failures,
            exit_status=status,
            checkpoint=None if outcomes else _newest_checkpoint(self._prepared),
            command=self._shown.command,
            pace_debt=_pace_debt(self._prepared),
        )
        summary.write(folder)
        for line in summary.complaints():
            print(f"shoal: {line}", file=sys.stderr)  # noqa: T201
        if self._shown.as_json:
            print(to_json({"kind": "summary", **asdict(summary)}), flush=True)  # noqa: T201
        else:
            Console().print("\n".join(summary.lines()), markup=False, highlight=False, soft_wrap=True)
        return status


def in_processes(prepared: Prepared, shown: Shown) -> int:
    """Train in one process per device on this machine."""
    run = prepared.job.run
    with Watching(prepared, shown) as watching:
        ending = launch(
            prepared.folder,
            prepared.plan.peers,
            threads=run.threads or 1,
            stop_grace=run.stop_grace,
            resume=prepared.resume,
            tell=watching.tell,
        )
    return watching.finish(ending.outcomes, ending.failures, ending.exit_status)


def in_lab(prepared: Prepared, shown: Shown, *, script: Sequence[Change] = (), pace: bool = True) -> int:
    """Train in one process per device, each on its host's place in a lab.

    Args:
        script: what happens to the lab, counted from the first step.
        pace: computations take the time of the devices in the cluster file.
    """
    run, cluster = prepared.job.run, prepared.cluster
    with labs.up(cluster, labs.Settings(seed=run.seed)) as lab, Watching(prepared, shown) as watching:
        first = lab.addresses[cluster.device(prepared.plan.peers[0]).host][0]

        def command(peer: str) -> list[str]:
            program = child_command(prepared.folder, peer, resume=prepared.resume, paced=pace, played=True)
            return lab.command(cluster.device(peer).host, program)

        def tell(report: Report) -> None:
            watching.tell(report)
            if report.kind == "start" and script:
                lab.play(script)

        watching.note(
            f"lab {lab.name!r}: {len(lab.hosts)} hosts; look with shoal lab status, change with shoal lab set"
        )
        ending = launch(
            prepared.folder,
            prepared.plan.peers,
            threads=run.threads or 1,
            stop_grace=run.stop_grace,
            resume=prepared.resume,
            tell=tell,
            command=command,
            coordinator=Coordinator(host=first, port=labs.MEETING_PORT, attempt=secrets.token_hex(8)),
        )
    return watching.finish(ending.outcomes, ending.failures, ending.exit_status)


def in_virtual_time(prepared: Prepared, shown: Shown) -> int:
    """Rehearse in this process. Ctrl-C stops after a step and saves; the second one (timing mode: the first) at once.

    Raises:
        Exception: whatever the model's own code raised, after the timeline and the summary were written.
    """
    timing = shown.world == "timing"
    with Watching(prepared, shown) as watching, StopSignals(patience=0 if timing else 1) as signals:
        rehearsal = rehearse(
            prepared.job,
            prepared.cluster,
            prepared.plan,
            timing=timing,
            folder=None if timing else prepared.folder,
            resume=prepared.resume,
            tell=watching.tell,
            should_stop=lambda: signals.asked,
        )
        _keep(prepared, rehearsal)
    failures = [] if isinstance(rehearsal.error, KeyboardInterrupt | None) else [_failure(rehearsal.error, rehearsal)]
    if signals.first is not None:
        return watching.finish(rehearsal.outcomes, failures, 128 + signals.first)
    status = watching.finish(rehearsal.outcomes, failures, failures[0].exit_status if failures else 0)
    if isinstance(rehearsal.error, Exception) and not isinstance(rehearsal.error, ShoalError):
        raise rehearsal.error
    return status


def as_rank(here: Place, make: Callable[[], Prepared], shown: Shown) -> int:
    """Be one of the processes that torchrun, Slurm or the like has started. The first one prepares and reports."""
    with assemble(here, make) as team:
        if not here.leads:
            ending = team.work()
            for failed in ending.failures:
                print(f"shoal: {failed.peer}: {failed.text}", file=sys.stderr)  # noqa: T201
            return ending.exit_status
        with Watching(team.prepared, shown) as watching:
            ending = team.work(watching.tell)
        return watching.finish(ending.outcomes, ending.failures, ending.exit_status)


def _decided(prepared: Prepared) -> str:
    """Where the run is kept, and what was decided for it."""
    mix, threads = prepared.job.mixing, prepared.job.run.threads or 1
    mixing = mix.name if mix.topology is None else f"{mix.name} on {mix.topology}"
    return f"run in {prepared.folder.root}: {mixing}, {threads} thread{'s' * (threads > 1)} per worker"


def _steps_logged(prepared: Prepared) -> int:
    """How far the workers of the newest session came; the leader's last report may be some steps old."""
    logs = last_session({peer: read_events(prepared.folder.events(peer)) for peer in prepared.plan.peers})
    return max((e.fields["step"] + 1 for events in logs.values() for e in events if e.kind == "step"), default=0)


def _pace_debt(prepared: Prepared) -> dict[str, float]:
    """By which share each paced worker of the newest session computed longer than its device would."""
    logs = last_session({peer: read_events(prepared.folder.events(peer)) for peer in prepared.plan.peers})
    paces = {peer: e.fields for peer, events in logs.items() for e in events if e.kind == "pace"}
    return {peer: told["debt_s"] / told["asked_s"] for peer, told in paces.items() if told["asked_s"]}


def _newest_checkpoint(prepared: Prepared) -> str | None:
    """The newest whole checkpoint in the run's folder, for a run that did not live to name it."""
    try:
        found = latest(prepared.folder.checkpoints, peers=prepared.plan.peers)
    except UserError:
        return None
    return str(found.path) if found else None


def _keep(prepared: Prepared, rehearsal: Rehearsal) -> None:
    """Write what happened in virtual time to the files that a real run has."""
    session = secrets.token_hex(8)
    for peer, trace in rehearsal.traces.items():
        log = EventLog(prepared.folder.events(peer), session=session)
        for event in trace.events:
            log(event)
        log.close()
        with prepared.folder.spans(peer).open("w", encoding="utf-8") as file:
            write_spans(file, trace.spans, dropped=trace.dropped)


def _failure(error: Exception, rehearsal: Rehearsal) -> Failure:
    return failure(rehearsal.failed or "the virtual world", error)
