"""``shoal compare``: two runs side by side."""

from __future__ import annotations

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
    """Compare two runs, whatever world they lived in: losses, step times, bytes, and what each lane did.

    Works on runs that failed, were killed or still go on, as far as their logs reach.
    """
    from rich.console import Console

    from shoal.report.compare import compare as side_by_side
    from shoal.report.measured import run_folder, summarise
    from shoal.report.side_by_side import show
    from shoal.report.text import to_json

    folders = [run_folder(a), run_folder(b)]
    found = side_by_side(*map(summarise, folders))
    if as_json:
        typer.echo(to_json(found.to_json()))
    else:
        show(found, Console())
