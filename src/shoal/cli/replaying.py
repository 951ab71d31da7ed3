"""``shoal replay``: run a recorded run again in virtual time and compare it to the bit."""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.cli.completion import complete_run

if TYPE_CHECKING:
    from shoal.rehearse import Recording
    from shoal.worker import RunFolder

EPILOG = "\b\nExample:\n  shoal replay runs/job/1"


def add_to(app: typer.Typer) -> None:
    app.command(epilog=EPILOG, short_help="Run a recorded run again and compare to the bit.")(replay)


def replay(
    run: Annotated[Path, typer.Argument(help="The folder of a run.", autocompletion=complete_run)],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Run a recorded run again in virtual time, with its order of arrival, and compare every loss to the bit.

    Works on runs that failed or were killed, up to the last step that a worker logged.
    """
    from rich.console import Console

    from shoal.launch.logs import last_session, read_events
    from shoal.launch.messages import failure
    from shoal.launch.prepare import read
    from shoal.launch.signals import StopSignals
    from shoal.rehearse import Recording
    from shoal.rehearse import replay as run_again
    from shoal.report import Live, Progress
    from shoal.worker import RunFolder

    prepared = read(RunFolder(run))
    logs = {peer: read_events(prepared.folder.events(peer)) for peer in prepared.plan.peers}
    recording = Recording(
        job=prepared.job,
        cluster=prepared.cluster,
        plan=prepared.plan,
        events=last_session(logs),
        folder=prepared.folder,
    )
    progress, console = Progress(), Console()
    shown = Live(progress, console) if console.is_terminal and not as_json else contextlib.nullcontext()
    with StopSignals(patience=1) as signals, shown:
        found = run_again(recording, tell=progress, should_stop=lambda: signals.asked)
    ending = _ending(prepared.folder, recording)
    compared = f"{found.steps} steps of {found.workers} workers"
    if as_json:
        difference = None if found.difference is None else str(found.difference)
        line: dict[str, Any] = {"equal": found.equal, "steps": found.steps, "workers": found.workers}
        typer.echo(json.dumps({**line, "difference": difference, "run_ended": ending}))
    elif found.difference is None:
        typer.echo(f"replayed {compared}: losses and parameters equal to the bit")
    else:
        typer.echo(f"replayed {compared}; the first difference: {found.difference}")
    if ending and not as_json:
        typer.echo(f"the run itself ended so: {'; '.join(ending)}")
    if found.error is not None and not found.equal:
        why = failure("the replay", found.error)
        print(f"shoal: {why.peer} ended early: {why.text}", file=sys.stderr)  # noqa: T201
    if signals.first is not None:
        raise typer.Exit(128 + signals.first)
    raise typer.Exit(0 if found.equal else 1)


def _ending(folder: RunFolder, recording: Recording) -> list[str]:
    """How a run that failed ended: as its summary says, or, where its launcher died too, as its workers logged it."""
    try:
        failures = json.loads(folder.summary.read_text(encoding="utf-8"))["failures"]
        return [f"{failure['peer']}: {failure['text']}" for failure in failures]
    except (OSError, ValueError, KeyError, TypeError):
        return [f"{event.peer}: {', '.join(f'{k} {v}' for k, v in event.fields.items())}" for event in recording.losses]
