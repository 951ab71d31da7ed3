"""``shoal probe``: measure what there is, and write it down as a cluster file."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.cli.completion import complete_toml
from shoal.errors import UserError

if TYPE_CHECKING:
    from shoal.cluster import Cluster
    from shoal.launch.torchrun import Place
    from shoal.probe import Change, Progress, Settings, Survey

EXAMPLES = """\
\b
Examples:
  shoal probe                                      this machine
  torchrun --nnodes 3 ... -m shoal probe           all machines, started by torchrun or Slurm
  torchrun ... -m shoal probe --update cluster.toml
  shoal probe --lab --cluster cluster.toml --out measured.toml
"""
DEFAULT_OUT = Path("cluster.toml")


def add_to(app: typer.Typer) -> None:
    app.command(epilog=EXAMPLES, short_help="Measure devices and links, and write cluster.toml.")(probe)


def probe(
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Where to write (default: cluster.toml, or the file to update)."),
    ] = None,
    workers: Annotated[
        int | None, typer.Option("--workers", min=1, help="Processes on this machine (default: 1, or one per GPU).")
    ] = None,
    cluster: Annotated[
        Path | None,
        typer.Option("--cluster", help="Names for the devices and hosts.", autocompletion=complete_toml),
    ] = None,
    lab: Annotated[
        bool, typer.Option("--lab", help="Measure a lab of the machines in --cluster instead of this machine.")
    ] = False,
    update: Annotated[
        Path | None,
        typer.Option(
            "--update", help="Measure again, and keep what is not measured now.", autocompletion=complete_toml
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite a file that is there.")] = False,
    seconds: Annotated[float, typer.Option("--seconds", min=0.1, help="At most so long for one direction.")] = 4.0,
    nbytes: Annotated[str, typer.Option("--bytes", help="At most so much for one direction.")] = "1 GB",
    precision: Annotated[str, typer.Option("--precision", help="Whose speed counts: float32 or bfloat16.")] = "float32",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON lines: the progress, then the result.")] = False,
) -> None:
    """Measure the speed of devices and links, find the islands, and write a cluster file.

    Alone it measures this machine. Under torchrun (or whatever sets RANK and WORLD_SIZE) it measures all machines that
    take part and the links between them; the first process writes the file.
    """
    from shoal.launch import torchrun

    here = torchrun.place()
    if lab and (cluster is None or here is not None):
        problem, mend = ("there is no cluster to build it of", "add --cluster FILE")
        if here is not None:
            problem, mend = "RANK and WORLD_SIZE are set: the machines are there already", "leave it out"
        raise UserError(problem, key="--lab", mend=mend)
    asked = _Asked.read(out, update, cluster, workers, here, precision=precision, force=force)
    settings = _settings(seconds, nbytes)
    with _shown(as_json, leads=here is None or here.leads) as tell:
        survey = _measure_lab(settings, asked, tell) if lab else _measure(here, settings, asked, tell)
    if survey is not None:
        _finish(survey, asked, as_json)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """What was asked for, after it was found possible; nothing is measured in vain."""

    out: Path
    old: Cluster | None
    names: Cluster | None
    workers: int | None
    precision: str

    @classmethod
    def read(
        cls,
        out: Path | None,
        update: Path | None,
        cluster: Path | None,
        workers: int | None,
        here: Place | None,
        *,
        precision: str,
        force: bool,
    ) -> _Asked:
        from shoal import cluster as clusters
        from shoal.probe.figures import PRECISIONS

        if precision not in PRECISIONS:
            raise UserError("no such precision", key="--precision", value=precision, mend="write float32 or bfloat16")
        if workers is not None and (here or cluster):
            who = "torchrun" if here else f"the cluster {cluster}"
            problem = f"{who} says how many processes there are"
            raise UserError(problem, key="--workers", value=workers, mend="leave it out")
        leads = here is None or here.leads  # the only one that needs the files
        target = out or update or DEFAULT_OUT
        if leads:
            _check_target(target, free=force or target == update)
        names = clusters.load(cluster) if cluster and (leads or cluster.exists()) else None
        if names and here and here.size != len(names.peers):
            raise UserError(
                f"{here.size} processes were started for a cluster of {len(names.peers)} devices",
                key="WORLD_SIZE",
                value=here.size,
                mend=f"start {len(names.peers)}, or leave out --cluster",
            )
        old = clusters.load(update) if update and leads else None
        return cls(out=target, old=old, names=names, workers=workers, precision=precision)


def _check_target(target: Path, *, free: bool) -> None:
    if target.exists() and not free:
        mend = "name another with --out, overwrite it with --force, or renew it with --update"
        raise UserError("exists already", file=str(target), mend=mend)
    if target.is_dir() or not target.parent.is_dir():
        raise UserError("cannot write here", file=str(target), key="--out", mend="name a file in a folder that exists")


def _settings(seconds: float, nbytes: str) -> Settings:
    from shoal.probe import Settings
    from shoal.units import WrongValueError, byte_count

    try:
        limit = byte_count(nbytes)
    except WrongValueError as error:
        raise UserError(error.problem, key="--bytes", value=nbytes, mend=error.mend) from None
    return Settings(seconds=seconds, nbytes=float(limit))


# ------------------------------------------------------------------------------------------------------- measuring


def _measure(here: Place | None, settings: Settings, asked: _Asked, tell: Callable[[Progress], None]) -> Survey | None:
    """The survey: as one of the processes that somebody else has started, or in processes of our own.

    None at ranks other than the first.
    """
    import os

    from shoal.probe import measure
    from shoal.probe.one_peer import as_rank, rank_peers

    if here is not None:
        peers = rank_peers(here.size)
        kind = _devices(peers, asked.names)[0].get(peers[here.rank])
        return as_rank(here, settings=settings, kind=kind, names=_names(peers, asked.names), tell_progress=tell)
    peers = list(asked.names.peers) if asked.names else rank_peers(asked.workers or _gpus() or 1)
    kinds, numbers = _devices(peers, asked.names)
    return measure(
        peers,
        settings=settings,
        threads=max(1, (os.cpu_count() or 1) // len(peers)),
        kinds=kinds,
        numbers=numbers,
        names=_names(peers, asked.names),
        progress=tell,
    )


def _measure_lab(settings: Settings, asked: _Asked, tell: Callable[[Progress], None]) -> Survey:
    """The survey of a lab: its links, and devices that compute as fast as the cluster file says."""
    from shoal import lab as labs
    from shoal.probe import measure

    assert asked.names is not None
    peers, cluster = list(asked.names.peers), asked.names
    with labs.up(cluster) as lab:
        first = lab.addresses[cluster.device(peers[0]).host][0]
        return measure(
            peers,
            wrap=lambda peer: lab.command(cluster.device(peer).host, []),
            environment=lambda peer: {"MASTER_ADDR": first, "MASTER_PORT": str(labs.MEETING_PORT)},
            settings=settings,
            kinds=dict.fromkeys(peers, "cpu"),
            names=_names(peers, cluster),
            paces={d.name: (d.flops, d.memory_bandwidth_bytes_per_s) for d in cluster.devices},
            progress=tell,
        )


def _names(peers: list[str], named: Cluster | None) -> dict[str, tuple[str, str]]:
    """Peer → (device, host): the n-th peer is the n-th device in the order of names."""
    if named is None:
        return {}
    return {peer: (device.name, device.host) for peer, device in zip(peers, named.devices, strict=True)}


def _devices(peers: list[str], named: Cluster | None) -> tuple[dict[str, str], dict[str, int]]:
    """Kind of each peer's device, where a file says, and its number among those of this machine."""
    if named is None:
        return {}, {peer: n for n, peer in enumerate(peers)}
    kinds = {peer: device.kind for peer, device in zip(peers, named.devices, strict=True)}
    of_kind = {kind: [peer for peer in peers if kinds[peer] == kind] for kind in set(kinds.values())}
    return kinds, {peer: of_kind[kinds[peer]].index(peer) for peer in peers}


def _gpus() -> int:
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


# --------------------------------------------------------------------------------------------------------- showing


@contextmanager
def _shown(as_json: bool, *, leads: bool) -> Iterator[Callable[[Progress], None]]:
    """Progress as JSON lines, as a bar on a terminal, or as plain lines."""
    from rich.console import Console

    console = Console()
    if not leads:
        yield lambda at: None
    elif as_json:
        yield lambda at: typer.echo(json.dumps({"kind": "progress", **asdict(at)}))
    elif console.is_terminal:
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bar

        columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
        with Bar(*columns, console=console, transient=True) as bar:
            task = bar.add_task("starting", total=None)
            yield lambda at: bar.update(task, completed=at.done, total=at.total, description=at.text)
    else:
        yield lambda at: typer.echo(f"{at.done}/{at.total}  {at.text}")


def _finish(survey: Survey, asked: _Asked, as_json: bool) -> None:
    """Write the file whole, and show what is in it."""
    from datetime import datetime

    from shoal.cluster import matrix_text
    from shoal.launch.prepare import write_whole
    from shoal.probe import as_text, merge, to_cluster

    changes: list[Change] = []
    if asked.old is None:
        cluster = to_cluster(survey, name=asked.out.stem, precision=asked.precision)
    else:
        cluster, changes = merge(asked.old, survey, precision=asked.precision)
    text = as_text(cluster, survey, when=f"{datetime.now().astimezone():%Y-%m-%d %H:%M %Z}")
    try:
        write_whole(asked.out, text)
    except OSError as error:
        raise UserError(f"cannot write: {error.strerror}", file=str(asked.out), mend="name another --out") from error
    islands = _islands(cluster)
    if as_json:
        told: dict[str, Any] = {"kind": "survey", "out": str(asked.out), "islands": islands}
        typer.echo(json.dumps({**told, "changes": [asdict(change) for change in changes], **survey.to_json()}))
        return
    typer.echo(matrix_text(cluster))
    for name, hosts in islands.items():
        typer.echo(f"{name}: {', '.join(hosts)}")
    for change in changes:
        typer.echo(str(change))
    if asked.old is not None and not changes:
        typer.echo("nothing has changed by more than 5 %")
    typer.echo(f"wrote {asked.out}")


def _islands(cluster: Cluster) -> Mapping[str, list[str]]:
    found: dict[str, list[str]] = {name: [] for name in cluster.islands}
    for host in cluster.hosts.values():
        found[host.island].append(host.name)
    return found
