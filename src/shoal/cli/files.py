"""``shoal init`` and ``shoal cluster``: the files that a person writes."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.cli.completion import complete_run, complete_toml
from shoal.errors import UserError

if TYPE_CHECKING:
    from shoal.cluster import Cluster


def add_to(app: typer.Typer) -> None:
    app.command(epilog="\b\nExamples:\n  shoal init\n  shoal init my-experiment")(init)
    group = typer.Typer(help="Look at cluster files.", no_args_is_help=True)
    group.command(
        short_help="Show a cluster with every default filled in.",
        epilog="\b\nExample:\n  shoal cluster show cluster.toml",
    )(show)
    app.add_typer(group, name="cluster")


def init(
    folder: Annotated[Path, typer.Argument(help="Where to write.", autocompletion=complete_run)] = Path("."),
    force: Annotated[bool, typer.Option("--force", help="Overwrite files that are there.")] = False,
) -> None:
    """Write a commented job.toml and cluster.toml to start from."""
    from shoal import cluster, job

    texts = {folder / "job.toml": job.template(), folder / "cluster.toml": cluster.template()}
    there = [str(path) for path in texts if path.exists()]
    if there and not force:
        raise UserError(f"{' and '.join(there)} exist already", mend="name another folder, or overwrite with --force")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, text in texts.items():
            path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write here: {error.strerror}", file=str(folder), mend="name another folder") from error
    for path in texts:
        typer.echo(f"wrote {path}")
    typer.echo(f"next: shoal train {shlex.quote(str(folder / 'job.toml'))}")


def show(
    file: Annotated[Path, typer.Argument(help="A cluster file.", autocompletion=complete_toml)],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object with every number in plain units.")] = False,
) -> None:
    """Show a cluster as Shoal understands it: every default filled in, every link written out."""
    from shoal import cluster

    loaded = cluster.load(file)
    if as_json:
        typer.echo(json.dumps(_plain(loaded)))
        return
    for line in [*_devices(loaded), "", *_hosts(loaded), "", *_matrix(loaded)]:
        typer.echo(line)


def _devices(cluster: Cluster) -> list[str]:
    from shoal.units import show_bytes, show_flops

    rows = [("device", "host", "island", "kind", "speed", "memory")]
    for d in cluster.devices:
        island = cluster.hosts[d.host].island
        rows.append((d.name, d.host, island, d.kind, show_flops(d.flops), show_bytes(d.memory_bytes)))
    return _table(rows)


def _hosts(cluster: Cluster) -> list[str]:
    from shoal.units import show_bandwidth

    rows = [("host", "up", "down", "price per hour")]
    for h in cluster.hosts.values():
        up, down = show_bandwidth(h.up_bytes_per_s), show_bandwidth(h.down_bytes_per_s)
        rows.append((h.name, up, down, f"{h.price_per_hour:g}"))
    return _table(rows)


def _matrix(cluster: Cluster) -> list[str]:
    """Latency (one way) and bandwidth from the host of the row to the host of the column."""
    from shoal.units import show_bandwidth, show_seconds

    names = list(cluster.hosts)
    rows = [("from \\ to", *names)]
    for a in names:
        cells = []
        for b in names:
            link = cluster.links.get((a, b))
            cells.append(
                f"{show_seconds(link.latency_s)} {show_bandwidth(link.bandwidth_bytes_per_s)}" if link else "–"
            )
        rows.append((a, *cells))
    return _table(rows)


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _plain(cluster: Cluster) -> dict[str, Any]:
    return {
        "name": cluster.name,
        "devices": [asdict(device) for device in cluster.devices],
        "hosts": [asdict(host) for host in cluster.hosts.values()],
        "islands": [asdict(island) for island in cluster.islands.values()],
        "links": [{"from": a, "to": b, **asdict(link)} for (a, b), link in cluster.links.items()],
    }
