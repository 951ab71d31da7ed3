"""The ``shoal`` command: its commands, and how they end.

An error that a person or a peer caused is one line on standard error and its own exit status; a traceback means a
defect of Shoal (or of a model's own code), unless ``--debug`` asks for one.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from typing import Annotated

import typer

from shoal.cli import comparing, doctoring, files, labs, listing, probing, replaying, training
from shoal.errors import ShoalError

EPILOG = """\
\b
Examples:
  shoal init                 write job.toml and cluster.toml
  shoal train job.toml       train, one process per device
  shoal simulate job.toml    the same in virtual time, in one process
  shoal replay runs/job/1    run it again and compare to the bit
  shoal lab up cluster.toml  far-away machines on this one
  shoal doctor               what this machine can do, and what will go wrong
  shoal probe                measure what there is into cluster.toml
  shoal list                 every strategy that a job can name
"""

app = typer.Typer(
    name="shoal",
    help="Train one model on machines that are far apart, unequal and unreliable.",
    epilog=EPILOG,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
training.add_to(app)
replaying.add_to(app)
comparing.add_to(app)
listing.add_to(app)
files.add_to(app)
labs.add_to(app)
probing.add_to(app)
doctoring.add_to(app)


@app.callback()
def _common(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of any error.")] = False,
) -> None:
    """Options before the command."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit; the entry point of ``shoal``.

    Args:
        arguments: without the program's name; None takes them from the process.

    Raises:
        SystemExit: always, with the exit status.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    try:
        app(args=arguments, prog_name="shoal")
    except ShoalError as error:
        if _debug(arguments):
            traceback.print_exception(error)
        else:
            print(f"shoal: {' '.join(str(error).split())}", file=sys.stderr)  # noqa: T201
        sys.exit(error.exit_status)


def _debug(arguments: Sequence[str]) -> bool:
    """Whether ``--debug`` stands before the command, where it belongs."""
    for argument in arguments:
        if not argument.startswith("-"):
            return False
        if argument == "--debug":
            return True
    return False
