"""``shoal lab``: far-away machines on this machine, for anything that runs on them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.cli.completion import complete_toml
from shoal.errors import UserError
from shoal.units import Quantity

if TYPE_CHECKING:
    from shoal.lab import Lab

EPILOG = """\
\b
Examples:
  shoal lab up cluster.toml
  shoal lab run oslo -- iperf3 --server
  shoal lab run bern -- torchrun --nnodes 2 --node-rank 1 --master-addr oslo train.py
  shoal lab set oslo bern --bandwidth "10 Mbps" --latency "50 ms"
  shoal lab cut bern
  shoal lab down --all
"""

lab = typer.Typer(
    help="Far-away machines on this machine: hosts, and links as slow as the cluster file says (Linux).",
    epilog=EPILOG,
    no_args_is_help=True,
    rich_markup_mode=None,
)


def add_to(app: typer.Typer) -> None:
    app.add_typer(lab, name="lab")


def _complete_lab(incomplete: str) -> list[str]:
    from shoal.lab import running

    return [found.name for found in running() if found.name.startswith(incomplete)]


def _complete_host(incomplete: str) -> list[str]:
    from shoal.lab import running

    return [host for found in running() for host in found.hosts if host.startswith(incomplete)]


Which = Annotated[
    str | None,
    typer.Option("--lab", help="Which lab, if several are up.", autocompletion=_complete_lab),
]
Host = Annotated[str, typer.Argument(help="A host of the lab.", autocompletion=_complete_host)]
Other = Annotated[
    str | None, typer.Argument(help="The other end of one link; all links otherwise.", autocompletion=_complete_host)
]
OneWay = Annotated[bool, typer.Option("--one-way", help="Only in this direction.")]


@lab.command(epilog="\b\nExample:\n  shoal lab up cluster.toml")
def up(
    cluster: Annotated[Path, typer.Argument(help="A cluster file.", autocompletion=complete_toml)],
    name: Annotated[str | None, typer.Option("--name", help="The lab's name (default: the cluster's).")] = None,
    queue: Annotated[str, typer.Option("--queue", help="How much may wait before a link.")] = "200 ms",
    congestion: Annotated[
        str | None, typer.Option("--congestion", help="TCP's congestion control: cubic, bbr, reno.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Of losses and jitter.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Bring a lab up; it stays until `shoal lab down`, or until this machine does."""
    from shoal import cluster as clusters
    from shoal.lab import Settings, start

    settings = Settings(queue_s=_quantity("--queue", queue, "SECONDS") or 0.0, congestion=congestion, seed=seed)
    made = start(clusters.load(cluster), settings, name=name)
    if as_json:
        _print_json(made.status())
        return
    print(f"lab {made.name!r} is up: {len(made.hosts)} hosts")  # noqa: T201
    for host, (v4, v6) in made.addresses.items():
        print(f"  {host:<16} {v4:<12} {v6}")  # noqa: T201
    for note in made.notes:
        print(f"  note: {note}")  # noqa: T201
    print(f"run something there: shoal lab run {made.hosts[0]} -- COMMAND")  # noqa: T201


@lab.command(
    context_settings={"ignore_unknown_options": True},
    epilog="\b\nExamples:\n  shoal lab run oslo -- bash\n  shoal lab run bern -- python serve.py --port 80",
)
def run(
    host: Host,
    command: Annotated[list[str], typer.Argument(help="What to run, after --.")],
    which: Which = None,
) -> None:
    """Run a command on a host of a lab. Hosts find one another by name."""
    from shoal.lab import find

    program = find(which).command(host, command)
    os.execv(sys.executable, program)


@lab.command(epilog="\b\nExamples:\n  shoal lab status\n  shoal lab status --json")
def status(
    which: Which = None, as_json: Annotated[bool, typer.Option("--json", help="One JSON object per lab.")] = False
) -> None:
    """Show the labs that are up: hosts, links, packets, and whether this machine keeps up."""
    from shoal.lab import find, running

    labs = [find(which)] if which is not None else running()
    if not labs and not as_json:
        print("no lab is up; bring one up with shoal lab up CLUSTER.toml")  # noqa: T201
    for found in labs:
        if not found.alive():
            print(f"lab {found.name!r} is gone; clean up with shoal lab down {found.name}")  # noqa: T201
        elif as_json:
            _print_json({"name": found.name, **found.status()})
        else:
            _show(found)


@lab.command("set", epilog='\b\nExample:\n  shoal lab set oslo bern --bandwidth "10 Mbps" --loss "1 %"')
def set_link(
    source: Host,
    target: Host,
    bandwidth: Annotated[str | None, typer.Option("--bandwidth", help='"10 Mbps"')] = None,
    latency: Annotated[str | None, typer.Option("--latency", help='One way: "20 ms"')] = None,
    jitter: Annotated[str | None, typer.Option("--jitter", help='"2 ms"')] = None,
    loss: Annotated[str | None, typer.Option("--loss", help='"0.1 %"')] = None,
    one_way: OneWay = False,
    which: Which = None,
) -> None:
    """Change a link while the lab runs."""
    from shoal import units
    from shoal.lab import Change

    change = Change(
        do="set",
        from_=source,
        to=target,
        one_way=one_way,
        bandwidth=_quantity("--bandwidth", bandwidth, "BANDWIDTH"),
        latency=_quantity("--latency", latency, "SECONDS"),
        jitter=_quantity("--jitter", jitter, "SECONDS"),
        loss=None if loss is None else _read("--loss", loss, units.share),
    )
    _change(change, which)


@lab.command(epilog="\b\nExamples:\n  shoal lab cut oslo bern\n  shoal lab cut bern")
def cut(host: Host, other: Other = None, one_way: OneWay = False, which: Which = None) -> None:
    """Cut a link, or all links of a host. What is under way is lost."""
    _links("cut", host, other, one_way, which)


@lab.command(epilog="\b\nExamples:\n  shoal lab heal oslo bern\n  shoal lab heal bern")
def heal(host: Host, other: Other = None, one_way: OneWay = False, which: Which = None) -> None:
    """Mend a link that was cut, or all links of a host."""
    _links("heal", host, other, one_way, which)


@lab.command(epilog="\b\nExample:\n  shoal lab pause bern")
def pause(host: Host, which: Which = None) -> None:
    """Stop all processes of a host, as if it were suspended."""
    from shoal.lab import Change

    _change(Change(do="pause", host=host), which)


@lab.command(epilog="\b\nExample:\n  shoal lab resume bern")
def resume(host: Host, which: Which = None) -> None:
    """Let the processes of a paused host go on."""
    from shoal.lab import Change

    _change(Change(do="resume", host=host), which)


@lab.command(epilog="\b\nExample:\n  shoal lab kill bern")
def kill(host: Host, which: Which = None) -> None:
    """End all processes of a host and cut its links, as a power loss does."""
    from shoal.lab import Change

    _change(Change(do="kill", host=host), which)


@lab.command(epilog="\b\nExample:\n  shoal lab play outage.toml")
def play(
    script: Annotated[Path, typer.Argument(help="A script (TOML).", autocompletion=complete_toml)],
    which: Which = None,
) -> None:
    """Let happen what a script says, counted from now."""
    from shoal.lab import find, load_script

    found = find(which)
    changes = load_script(script, found.hosts)
    found.play(changes)
    print(f"{len(changes)} changes, the last in {changes[-1].at:g} s")  # noqa: T201


@lab.command(epilog="\b\nExamples:\n  shoal lab down\n  shoal lab down --all")
def down(
    name: Annotated[str | None, typer.Argument(help="Which lab.", autocompletion=_complete_lab)] = None,
    everything: Annotated[bool, typer.Option("--all", help="Every lab, and what lost ones have left behind.")] = False,
) -> None:
    """End a lab and everything that runs on its hosts."""
    from shoal.lab import find, running

    known = {found.name: found for found in running()}
    for found in known.values() if everything else [known[name] if name in known else find(name)]:
        found.down()
        print(f"lab {found.name!r} is down")  # noqa: T201


def _links(do: Any, host: str, other: str | None, one_way: bool, which: str | None) -> None:
    from shoal.lab import Change

    if other is None:
        _change(Change(do=do, host=host), which)
    else:
        _change(Change(do=do, from_=host, to=other, one_way=one_way), which)


def _change(change: Any, which: str | None) -> None:
    from shoal.lab import find

    if found := change.problem():
        key, problem, mend = found
        raise UserError(problem, key=key, mend=mend)
    find(which).change(change)


def _quantity(flag: str, text: str | None, kind: str) -> float | None:
    from shoal import units

    quantity: Quantity = getattr(units, kind)
    return None if text is None else _read(flag, text, quantity.parse)


def _read(flag: str, text: str, parse: Callable[[str], float]) -> float:
    """What a person wrote after `flag`, or a complaint that names it."""
    from shoal.units import WrongValueError

    try:
        return float(parse(text))
    except WrongValueError as error:
        raise UserError(error.problem, key=flag, value=text, mend=error.mend) from None


def _show(found: Lab) -> None:
    from shoal.units import show_bandwidth, show_bytes, show_seconds

    told = found.status()
    print(f"lab {found.name!r}: up for {told['seconds']:.0f} s, {found.priority} priority")  # noqa: T201
    for host in told["hosts"]:
        moved = f"{show_bytes(host['sent_bytes'])} sent, {show_bytes(host['received_bytes'])} received"
        print(f"  {host['name']:<16} {host['processes']} processes, {moved}")  # noqa: T201
    for way in told["ways"]:
        figures = f"{show_bandwidth(way['bandwidth_bytes_per_s'])}, {show_seconds(way['latency_s'])}"
        if way["jitter_s"]:
            figures += f" ± {show_seconds(way['jitter_s'])}"
        if way["loss"]:
            figures += f", {way['loss']:.2%} lost"
        state = "" if way["up"] else "  CUT"
        waiting = f", {show_bytes(way['queued_bytes'])} waiting, {way['dropped_packets']} dropped"
        print(f"  {way['from']} > {way['to']}: {figures}{waiting}{state}")  # noqa: T201
    if told["late_turns"]:
        share = told["late_turns"] / told["turns"]
        print(f"  this machine was late for {share:.2%} of turns, {1e3 * told['latest_s']:.1f} ms at most")  # noqa: T201
    for note in told["notes"]:
        print(f"  note: {note}")  # noqa: T201


def _print_json(value: dict[str, Any]) -> None:
    import json

    print(json.dumps(value))  # noqa: T201
