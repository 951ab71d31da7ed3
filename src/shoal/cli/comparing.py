"""``shoal compare``: two runs side by side."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from shoal.cli.completion import complete_run

EPILOG = """\
\b
Examples:
  shoal compare runs/job-virtual/1 runs/job/1    the prediction and what came of it
  shoal compare runs/job/1 runs/job/2            two ways to do the same
"""
Run = Annotated[
    Path, typer.Argument(help="The folder of a run, or of all runs of a job: the newest.", autocompletion=complete_run)
]


def add_to(app: typer.Typer) -> None:
    app.command(epilog=EPILOG, short_help="Two runs side by side.")(compare)


def compare(
    a: Run,
    b: Run,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Compare two runs, whatever world they lived in: losses, step times, bytes, and what each lane did."""
    from shoal.report.compare import compare as side_by_side
    from shoal.report.measured import measured, run_folder

    found = side_by_side(measured(run_folder(a)), measured(run_folder(b)))
    if as_json:
        typer.echo(json.dumps(found.to_json(), default=str))
        return
    for line in found.lines():
        typer.echo(line)
