"""``shoal list`` and ``shoal version``."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from shoal.cli.completion import complete_seam
from shoal.errors import UserError


def add_to(app: typer.Typer) -> None:
    app.command(
        "list",
        short_help="List every strategy that a job can name.",
        epilog="\b\nExamples:\n  shoal list\n  shoal list topology",
    )(list_strategies)
    app.command(epilog="\b\nExample:\n  shoal version")(version)


def list_strategies(
    seam: Annotated[
        str | None, typer.Argument(help="Only the strategies of this seam.", autocompletion=complete_seam)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per strategy.")] = False,
) -> None:
    """List every strategy that a job can name, with one line each."""
    from shoal.registry import SEAMS, entries

    if seam is not None and seam not in SEAMS:
        raise UserError("no such seam", value=seam, mend=f"write one of {', '.join(sorted(SEAMS))}")
    for name in [seam] if seam else list(SEAMS):
        found = entries(name)
        if as_json:
            for entry in found:
                typer.echo(json.dumps({"seam": entry.seam, "name": entry.name, "summary": entry.summary}))
            continue
        typer.echo(f"{name}: {SEAMS[name]}")
        width = max((len(entry.name) for entry in found), default=0)
        for entry in found:
            typer.echo(f"  {entry.name:<{width}}  {entry.summary}")


def version() -> None:
    """Print Shoal's version."""
    from importlib.metadata import version as installed

    typer.echo(f"shoal {installed('shoal')}")
