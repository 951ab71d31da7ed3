"""A new survey on top of an older cluster file: what was measured is replaced, what was not is kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from shoal.cluster import Cluster, Device, Host, Links, Rule
from shoal.cluster.links import fastest
from shoal.errors import UserError
from shoal.probe.describe import Inventory, assemble, device_of, way_rule, within_host
from shoal.probe.figures import Pair, Survey
from shoal.probe.islands import find_islands
from shoal.units import show_bandwidth, show_flops, show_seconds

NOTICED = 0.05
"""Changes by less than this share, or less than the measurement's own spread, are not worth a line."""
NOTICED_S = 2e-4
"""Nor are changes of latency by less than this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One thing that is not as it was. `before` is None for what is new, `after` for what was not measured now."""

    what: str
    before: str | None
    after: str | None
    share: float | None = None

    def __str__(self) -> str:
        if self.before is None:
            return f"{self.what}: new, {self.after}"
        if self.after is None:
            return f"{self.what}: not measured now, kept as it was"
        by = f" ({self.share:+.0%})" if self.share is not None else ""
        return f"{self.what}: {self.before} → {self.after}{by}"


def merge(old: Cluster, survey: Survey, *, precision: str = "float32") -> tuple[Cluster, list[Change]]:
    """`old` with what `survey` measured in place of what it said, and what has changed by how much.

    Hosts and devices that were not there keep their numbers. Prices, losses, shared pipes and limits of hosts are not
    measured, so they are kept. Islands are found anew, and called as the old island with which they share most hosts.
    The way between a new host and one that was not there is taken to be as bad as their worse one usually is.

    Raises:
        UserError: nothing at all is known of the way between two hosts.
    """
    measured = [device_of(name, facts, precision) for name, facts in survey.devices.items()]
    devices = [*measured, *(device for device in old.devices if device.name not in survey.devices)]
    kept = [host for host in old.hosts if host not in survey.hosts and any(device.host == host for device in devices)]
    hosts = [*survey.hosts, *kept]
    ways = _ways(old, survey, hosts)
    parts = find_islands(hosts, {pair: rule.bandwidth_bytes_per_s for pair, rule in ways.items()})
    inventory = Inventory(
        name=old.name,
        devices=devices,
        memory={host: _memory(host, old, survey) for host in hosts},
        islands=dict(zip(_names(old, parts, hosts), parts, strict=True)),
        ways=ways,
        within_host=within_host(survey) or _links(old).within_host,
        spread={pair: way.bandwidth.spread for pair, way in survey.ways.items()},
    )
    merged = assemble(inventory)
    limits = {host: _limits(old, merged.hosts[host]) for host in hosts if host in old.hosts}
    merged = assemble(replace(inventory, limits=limits))
    changes = [*_of_hosts(old, survey, kept), *_of_devices(old, measured, survey), *_of_ways(old, survey)]
    return merged, changes


def _ways(old: Cluster, survey: Survey, hosts: Sequence[str]) -> dict[Pair, Rule]:
    """What is known of every ordered pair of hosts: measured, else as it was, else guessed."""
    known: dict[Pair, Rule] = {}
    pairs = [(a, b) for a in hosts for b in hosts if a != b]
    for a, b in pairs:
        before = _before(old, a, b)
        if (a, b) in survey.ways:
            known[a, b] = way_rule(survey.ways[a, b], before)
        elif before is not None:
            known[a, b] = before
    usual = {host: _usual([rule for pair, rule in known.items() if host in pair]) for host in hosts}
    return {(a, b): known.get((a, b)) or _worse(usual[a], usual[b], a, b) for a, b in pairs}


def _before(old: Cluster, src: str, dst: str) -> Rule | None:
    """The old file's rule for a pair; None if it did not have both hosts."""
    if src not in old.hosts or dst not in old.hosts:
        return None
    found = _links(old).find(src, dst)
    return found[0] if found else None


def _usual(rules: Sequence[Rule]) -> tuple[float, float] | None:
    """(latency, bandwidth) in the middle of these."""
    if not rules:
        return None
    return median(r.latency_s for r in rules), median(r.bandwidth_bytes_per_s for r in rules)


def _worse(one: tuple[float, float] | None, other: tuple[float, float] | None, a: str, b: str) -> Rule:
    some = [usual for usual in (one, other) if usual is not None]
    if not some:
        mend = "measure them together, or write a new file with --out"
        raise UserError(f"nothing is known of the way from {a!r} to {b!r}", key="--update", mend=mend)
    return Rule(
        latency_s=max(latency for latency, _ in some), bandwidth_bytes_per_s=min(bandwidth for _, bandwidth in some)
    )


def _names(old: Cluster, parts: Sequence[Sequence[str]], hosts: Sequence[str]) -> list[str]:
    """For each island the name of the old one with the largest overlap, largest first; the others get fresh names."""
    overlaps = []
    for n, part in enumerate(parts):
        for island in old.islands:
            common = sum(host in old.hosts and old.hosts[host].island == island for host in part)
            if common:
                overlaps.append((-common, n, island))
    names: dict[int, str] = {}
    for _, n, island in sorted(overlaps):
        if n not in names and island not in names.values() and island not in hosts:
            names[n] = island
    fresh = (f"island-{n}" for n in range(len(parts) + len(old.islands) + len(hosts)))
    free = (name for name in fresh if name not in old.islands and name not in hosts)
    return [names.get(n) or next(free) for n in range(len(parts))]


def _memory(host: str, old: Cluster, survey: Survey) -> float:
    return survey.hosts[host].memory_bytes if host in survey.hosts else old.hosts[host].memory_bytes


def _limits(old: Cluster, new: Host) -> Host:
    """`new` with the price and the limits that a person wrote: those that are not just the fastest link's."""
    was = old.hosts[new.name]
    up, down = fastest(_links(old))[new.name]
    return replace(
        new,
        price_per_hour=was.price_per_hour,
        up_bytes_per_s=max(was.up_bytes_per_s, new.up_bytes_per_s) if was.up_bytes_per_s != up else new.up_bytes_per_s,
        down_bytes_per_s=max(was.down_bytes_per_s, new.down_bytes_per_s)
        if was.down_bytes_per_s != down
        else new.down_bytes_per_s,
    )


def _links(cluster: Cluster) -> Links:
    if not isinstance(cluster.links, Links):
        raise TypeError("only a cluster that was read from a file can be updated")
    return cluster.links


# --------------------------------------------------------------------------------------------------------- changes


def _of_hosts(old: Cluster, survey: Survey, kept: Sequence[str]) -> Iterator[Change]:
    for host in survey.hosts:
        if host not in old.hosts:
            on = sum(device.host == host for device in survey.devices.values())
            yield Change(what=f"host {host}", before=None, after=f"{on} device{'s' * (on > 1)}")
    for host in kept:
        yield Change(what=f"host {host}", before="as it was", after=None)


def _of_devices(old: Cluster, measured: Sequence[Device], survey: Survey) -> Iterator[Change]:
    before: Mapping[str, Device] = {device.name: device for device in old.devices}
    for device in measured:
        was = before.get(device.name)
        spread = max((figure.spread for figure in survey.devices[device.name].flops.values()), default=0.0)
        if was is None:
            yield Change(what=f"device {device.name}", before=None, after=show_flops(device.flops))
        elif (share := device.flops / was.flops - 1.0) and abs(share) > max(NOTICED, spread):
            yield Change(
                what=f"device {device.name} speed",
                before=show_flops(was.flops),
                after=show_flops(device.flops),
                share=share,
            )


def _of_ways(old: Cluster, survey: Survey) -> Iterator[Change]:
    for (a, b), way in survey.ways.items():
        was = _before(old, a, b)
        if was is None or a == b:
            continue
        now = way_rule(way)
        rate = now.bandwidth_bytes_per_s / was.bandwidth_bytes_per_s - 1.0
        if abs(rate) > max(NOTICED, way.bandwidth.spread):
            shown = [show_bandwidth(rule.bandwidth_bytes_per_s) for rule in (was, now)]
            yield Change(what=f"{a} → {b} bandwidth", before=shown[0], after=shown[1], share=rate)
        late = now.latency_s - was.latency_s
        if abs(late) > max(NOTICED * was.latency_s, NOTICED_S):
            shown = [show_seconds(rule.latency_s) for rule in (was, now)]
            share = late / was.latency_s if was.latency_s else None
            yield Change(what=f"{a} → {b} latency", before=shown[0], after=shown[1], share=share)
