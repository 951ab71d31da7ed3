"""``shoal doctor``: what this machine can do, and what will go wrong."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli.completion import complete_run, complete_toml
from shoal.errors import UserError

if TYPE_CHECKING:
    from shoal.doctor import Finding

EXAMPLES = """\
\b
Examples:
  shoal doctor                          this machine
  shoal doctor job.toml                 and whether a job fits it
  shoal doctor --listen 29600           on one machine, and on another:
  shoal doctor --peer oslo:29600        the path between them, both ways
"""
FAILED = 1


def add_to(app: typer.Typer) -> None:
    app.command(epilog=EXAMPLES, short_help="What this machine can do, and what will go wrong.")(doctor)


def doctor(
    job: Annotated[Path | None, typer.Argument(help="A job that is to run here.", autocompletion=complete_toml)] = None,
    peer: Annotated[
        str | None, typer.Option("--peer", metavar="HOST:PORT", help="Test the path to there and back.")
    ] = None,
    listen: Annotated[
        str | None, typer.Option("--listen", metavar="[HOST:]PORT", help="Be the other end of such a test.")
    ] = None,
    lasting: Annotated[
        float | None, typer.Option("--for", min=0.1, metavar="SECONDS", help="Stop listening by itself.")
    ] = None,
    master: Annotated[
        str | None, typer.Option("--master", metavar="ADDRESS", help="Where the workers will meet.")
    ] = None,
    runs: Annotated[Path, typer.Option("--runs", help="Folder of all runs.", autocompletion=complete_run)] = Path(
        "runs"
    ),
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per finding.")] = False,
) -> None:
    """Look at this machine, one line per finding, and say how to mend what is wrong.

    Ends with 1 if something will go wrong. With --peer it tests a path instead.
    """
    import asyncio

    failed = False

    def show(finding: Finding) -> None:
        nonlocal failed
        failed = failed or finding.state == "fail"
        typer.echo(json.dumps(asdict(finding)) if as_json else finding.line())

    if listen is not None:
        _listen(listen, lasting, peer)
        return
    if peer is not None:
        from shoal.doctor import check_path, parse_endpoint

        asyncio.run(_show_all(check_path(parse_endpoint(peer, key="--peer")), show))
    else:
        for finding in _examine(job, master, runs):
            show(finding)
    raise typer.Exit(FAILED if failed else 0)


def _examine(job: Path | None, master: str | None, runs: Path) -> Iterator[Finding]:
    """All findings about this machine, as they are made."""
    import os

    from shoal.doctor import (
        check_addresses,
        check_clock,
        check_devices,
        check_environment,
        check_job,
        check_system,
        parse_endpoint,
    )
    from shoal.doctor.addresses import Network
    from shoal.doctor.clock import Clock
    from shoal.doctor.devices import Machine
    from shoal.doctor.system import System

    machine = Machine.here()
    yield from check_devices(machine)
    said = master or os.environ.get("MASTER_ADDR") or None
    coordinator = parse_endpoint(said, key="--master").host if said else None
    yield from check_addresses(Network.here(coordinator), os.environ.get("SHOAL_INTERFACE"), coordinator=coordinator)
    yield from check_environment(os.environ)
    yield from check_system(System.here(runs), runs)
    yield from check_clock(Clock.here())
    if job is not None:
        from shoal import job as jobs
        from shoal.launch.prepare import cluster_of

        read = jobs.load(job)
        yield from check_job(read.name, cluster_of(read), machine, read.run.threads)


async def _show_all(findings: AsyncIterator[Finding], show: Callable[[Finding], None]) -> None:
    async for finding in findings:
        show(finding)


def _listen(listen: str, lasting: float | None, peer: str | None) -> None:
    """Be the other end until Ctrl-C, or for so long."""
    import asyncio
    import socket

    from shoal.doctor import Endpoint, parse_endpoint, serve

    if peer is not None:
        raise UserError("one machine listens, the other one tests", key="--listen", mend="leave out --peer")
    at = Endpoint("", int(listen)) if listen.isdigit() else parse_endpoint(listen, key="--listen")
    if at.port > 65535:
        raise UserError("not a port", key="--listen", value=listen, mend="write a number from 1 to 65535")

    def ready(where: Endpoint) -> None:
        host = where.host or socket.gethostname()
        typer.echo(f"listening; on the other machine type: shoal doctor --peer {Endpoint(host, where.port)}")

    asyncio.run(serve(at, lasting=lasting, on_ready=ready, on_event=typer.echo))
