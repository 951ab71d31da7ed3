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
    from shoal.doctor import Endpoint, Finding

EXAMPLES = """\
\b
Examples:
  shoal doctor                          this machine
  shoal doctor job.toml                 and whether a job fits it
  shoal doctor --master 10.0.0.1        and the address that others are told
  shoal doctor --listen 29600           on one machine, and on another:
  shoal doctor --peer oslo:29600        the path between them, both ways
"""
FAILED = 1
_COLOURS = {"ok": "green", "note": "cyan", "warn": "yellow", "fail": "bold red"}


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
    runs: Annotated[
        Path | None,
        typer.Option("--runs", help="Folder of all runs (default: runs).", autocompletion=complete_run),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per finding.")] = False,
) -> None:
    """Look at this machine, one line per finding, and say how to mend what is wrong.

    Ends with 1 if something will go wrong. With --peer it tests a path instead.
    """
    _check_options(job, peer, listen, lasting, master, runs)
    if listen is not None:
        _listen(listen, lasting, as_json)
        return
    failed = False
    print_finding = _printer(as_json)

    def show(finding: Finding) -> None:
        nonlocal failed
        failed = failed or finding.state == "fail"
        print_finding(finding)

    if peer is not None:
        import asyncio

        asyncio.run(_show_all(_test_path(peer), show))
    else:
        for finding in _examine(job, master, runs or Path("runs")):
            show(finding)
    raise typer.Exit(FAILED if failed else 0)


def _check_options(
    job: Path | None, peer: str | None, listen: str | None, lasting: float | None, master: str | None, runs: Path | None
) -> None:
    """An option that would have no effect is a mistake."""
    if peer is not None and listen is not None:
        raise UserError("one machine listens, the other one tests", key="--listen", mend="leave out --peer")
    if lasting is not None and listen is None:
        raise UserError("nothing listens", key="--for", value=lasting, mend="add --listen PORT, or leave it out")
    instead = "--peer" if peer is not None else "--listen"
    for key, value in (("JOB", job), ("--master", master), ("--runs", runs)):
        if value is not None and (peer is not None or listen is not None):
            problem = f"{instead} looks at a path, not at this machine"
            raise UserError(problem, key=key, value=str(value), mend=f"leave out one of {key} and {instead}")


def _printer(as_json: bool) -> Callable[[Finding], None]:
    """JSON, colours on a terminal, or plain lines."""
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)

    def colour(finding: Finding) -> None:
        line = Text(finding.line())
        line.stylize(_COLOURS[finding.state], 0, len(finding.state))
        if finding.mend:
            line.stylize("bold", len(line) - len(finding.mend))
        console.print(line, soft_wrap=True)

    if as_json:
        return lambda finding: typer.echo(json.dumps(asdict(finding)))
    return colour if console.is_terminal else lambda finding: typer.echo(finding.line())


async def _show_all(findings: AsyncIterator[Finding], show: Callable[[Finding], None]) -> None:
    async for finding in findings:
        show(finding)


def _test_path(peer: str) -> AsyncIterator[Finding]:
    import os

    from shoal.doctor import Offer, check_path, parse_endpoint
    from shoal.worlds import process_addresses as addresses

    offer = Offer(
        setting=os.environ.get(addresses.INTERFACE), ports=addresses.port_range(os.environ.get(addresses.PORT_RANGE))
    )
    return check_path(parse_endpoint(peer, key="--peer"), offer=offer)


def _examine(job: Path | None, master: str | None, runs: Path) -> Iterator[Finding]:
    """All findings about this machine, as they are made; a file that cannot be used ends it before the first."""
    import os
    import socket

    from shoal import doctor as doctors
    from shoal import job as jobs
    from shoal.doctor.clock import Clock
    from shoal.doctor.devices import Machine
    from shoal.doctor.network import Network
    from shoal.doctor.system import System
    from shoal.launch.prepare import cluster_of

    read = None if job is None else jobs.load(job)
    cluster = None if read is None else cluster_of(read)
    said = master or os.environ.get("MASTER_ADDR") or None
    key = "--master" if master else "MASTER_ADDR"
    coordinator = doctors.parse_endpoint(said, key=key).host if said else None

    machine, host = Machine.here(), socket.gethostname()
    workers, is_mine = doctors.workers_here(cluster, host) if cluster else ((), False)
    needed = len(workers) if is_mine or len({worker.host for worker in workers}) == 1 else 1
    yield from doctors.check_devices(machine)
    yield from doctors.check_addresses(Network.here(coordinator, os.environ.get("SHOAL_INTERFACE")))
    yield from doctors.check_launcher(os.environ)
    yield from doctors.check_ports(os.environ, needed=max(1, needed))
    yield from doctors.check_system(System.here(runs), runs)
    yield from doctors.check_clock(Clock.here())
    if read is not None and cluster is not None:
        world_size = os.environ.get("WORLD_SIZE", "")
        yield from doctors.check_job(read.name, cluster, machine, read.run.threads, host=host, world_size=world_size)


def _listen(listen: str, lasting: float | None, as_json: bool) -> None:
    """Be the other end until Ctrl-C, or for so long."""
    import asyncio
    import os

    from shoal.doctor import serve
    from shoal.doctor.endpoint import parse_listening
    from shoal.doctor.network import Network

    at = parse_listening(listen, key="--listen")

    def tell(kind: str, text: str, **more: object) -> None:
        typer.echo(json.dumps({"kind": kind, "text": text, **more}) if as_json else text)

    def ready(where: Endpoint) -> None:
        known = (
            [where]
            if where.host not in ("", "0.0.0.0", "::")
            else Network.here(setting=os.environ.get("SHOAL_INTERFACE")).reachable(where.port)
        )
        command = f"shoal doctor --peer {known[0]}"
        also = f" (or {', '.join(str(endpoint) for endpoint in known[1:])})" if known[1:] else ""
        tell("listening", f"listening; on the other machine type: {command}{also}", peers=[str(e) for e in known])

    asyncio.run(serve(at, lasting=lasting, on_ready=ready, on_event=lambda text: tell("event", text)))
