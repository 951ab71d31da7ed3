"""Writing a cluster: as a complete cluster file, and as the matrix of its links for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shoal import toml
from shoal.cluster.cluster import Cluster, Device, Host, Links, Rule
from shoal.units import (
    BANDWIDTH,
    BYTES,
    FLOPS,
    MEMORY_BANDWIDTH,
    PRICE_PER_BYTE,
    PRICE_PER_HOUR,
    SECONDS,
    show_bandwidth,
    show_seconds,
)


def dump(cluster: Cluster) -> str:
    """`cluster` as a complete cluster file, nothing left to defaults; it loads back to an equal cluster.

    Raises:
        TypeError: its links are not made of rules (it was put together by hand from single links).
    """
    links = cluster.links
    if not isinstance(links, Links):
        raise TypeError("only a cluster whose links are `Links` can be written as a file")
    defaults = {"within_host": _rule(links.within_host)}
    if links.between is not None:
        defaults["between_islands"] = _rule(links.between)
    tables = {
        "name": cluster.name,
        "defaults": defaults,
        "island": [
            {"name": name, **({} if name not in links.within_island else _rule(links.within_island[name]))}
            for name in cluster.islands
        ],
        "host": [_host(host) for host in cluster.hosts.values()],
        "device": [_device(device) for device in cluster.devices],
        "link": _links(links),
    }
    return "# A complete cluster: nothing left to defaults.\n" + toml.dumps(tables)


def matrix_text(cluster: Cluster) -> str:
    """The links between all hosts as a table: from the row to the column. Hosts that are alike share a row.

    ``*`` marks a pipe that several pairs of hosts share, ``~`` a link that is only the default between islands.
    """
    groups = _alike(cluster)
    labels = [_label(cluster, hosts) for hosts in groups]
    rows = [["from \\ to", *labels, "up", "down"]]
    for label, hosts in zip(labels, groups, strict=True):
        host = cluster.hosts[hosts[0]]
        limits = [show_bandwidth(host.up_bytes_per_s), show_bandwidth(host.down_bytes_per_s)]
        rows.append([label, *(_cell(cluster, hosts, others) for others in groups), *limits])
    widths = [max(len(row[n]) for row in rows) for n in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    notes = {"*": "one pipe, shared by all pairs of hosts", "~": "the default between islands"}
    used = [f"{mark} {meaning}" for mark, meaning in notes.items() if any(f" {mark}" in line for line in lines[1:])]
    return "\n".join([*lines, *used])


def _alike(cluster: Cluster) -> list[list[str]]:
    """Hosts in groups: those of one island that no link names and that have the same limits are alike."""
    links = cluster.links
    named = {place for pair in links.rules for place in pair} if isinstance(links, Links) else set(cluster.hosts)
    found: dict[tuple[object, ...], list[str]] = {}
    for host in cluster.hosts.values():
        own = host.name if host.name in named else ""
        found.setdefault((host.island, own, host.up_bytes_per_s, host.down_bytes_per_s), []).append(host.name)
    return list(found.values())


def _label(cluster: Cluster, hosts: Sequence[str]) -> str:
    if len(hosts) == 1:
        return hosts[0]
    island = cluster.hosts[hosts[0]].island
    all_of_it = len(hosts) == sum(host.island == island for host in cluster.hosts.values())
    return f"{island} ({len(hosts)} hosts)" if all_of_it else f"{hosts[0]} … {hosts[-1]}"


def _cell(cluster: Cluster, hosts: Sequence[str], others: Sequence[str]) -> str:
    """Bandwidth and latency from one of `hosts` to another one of `others`."""
    pair = (hosts[0], others[-1])
    if pair[0] == pair[1] and sum(device.host == pair[0] for device in cluster.devices) < 2:
        return "-"
    link, links = cluster.links[pair], cluster.links
    marks = ""
    if isinstance(links, Links) and (found := links.find(*pair)):
        rule, places = found
        marks = " *" * rule.shared + " ~" * (pair[0] != pair[1] and rule is links.between and places not in links.rules)
    return f"{show_bandwidth(link.bandwidth_bytes_per_s)} {show_seconds(link.latency_s)}{marks}"


def _rule(rule: Rule) -> dict[str, Any]:
    told: dict[str, Any] = {
        "latency": SECONDS.write(rule.latency_s),
        "bandwidth": BANDWIDTH.write(rule.bandwidth_bytes_per_s),
    }
    if rule.shared:
        told["shared"] = True
    if rule.jitter_s:
        told["jitter"] = SECONDS.write(rule.jitter_s)
    if rule.loss:
        told["loss"] = rule.loss
    if rule.price_per_byte:
        told["price"] = PRICE_PER_BYTE.write(rule.price_per_byte)
    return told


def _links(links: Links) -> list[dict[str, Any]]:
    """Each rule one way; a rule that is the same in both directions is written once."""
    told = []
    for (src, dst), rule in links.rules.items():
        both = links.rules.get((dst, src)) == rule
        if not both:
            told.append({"from": src, "to": dst, **_rule(rule), "one_way": True})
        elif src < dst:
            told.append({"from": src, "to": dst, **_rule(rule)})
    return told


def _host(host: Host) -> dict[str, Any]:
    return {
        "name": host.name,
        "island": host.island,
        "up": BANDWIDTH.write(host.up_bytes_per_s),
        "down": BANDWIDTH.write(host.down_bytes_per_s),
        "memory": BYTES.write(round(host.memory_bytes)),
        "price_per_hour": PRICE_PER_HOUR.write(host.price_per_hour),
    }


def _device(device: Device) -> dict[str, Any]:
    return {
        "name": device.name,
        "host": device.host,
        "kind": device.kind,
        "speed": FLOPS.write(device.flops),
        "memory": BYTES.write(round(device.memory_bytes)),
        "memory_bandwidth": MEMORY_BANDWIDTH.write(device.memory_bandwidth_bytes_per_s),
    }
