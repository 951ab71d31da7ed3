"""From measurements to a `Cluster`, and to the text of a cluster file that says how sure each number is.

The file stays readable: an island has one rule, a pair of islands one in each direction, and a pair of hosts gets a
line of its own only where it clearly differs. Numbers are rounded to three digits, which is more than a measurement
on a shared network is good for.
"""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

from shoal import cluster as clusters
from shoal.cluster import Cluster, Device, Host, Island, Links, Rule
from shoal.cluster.links import fastest
from shoal.probe.figures import DeviceFacts, Pair, Survey, Way
from shoal.probe.islands import find_islands
from shoal.schema import comment
from shoal.units import show_bandwidth, show_bytes, show_flops, show_seconds

CLEARLY = 0.1
"""A pair of hosts that differs by more than this share (and by more than its own spread) gets a rule of its own."""
SMALL_LATENCY_S, SMALL_JITTER_S = 2e-4, 5e-4
"""Less than this is the processes' own scheduling, not the network."""
ASSUMED_WITHIN_HOST = Rule(latency_s=10e-6, bandwidth_bytes_per_s=10e9)


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """All that a cluster is made of, pair by pair.

    Args:
        island: names of islands → their hosts.
        ways: every ordered pair of different hosts.
        spread: pairs whose bandwidth was measured → its spread.
        limits: hosts whose up- and downlink are known to be lower than their fastest link, or whose price is known.
    """

    name: str
    devices: Sequence[Device]
    memory: Mapping[str, float]
    islands: Mapping[str, Sequence[str]]
    ways: Mapping[Pair, Rule]
    within_host: Rule = ASSUMED_WITHIN_HOST
    spread: Mapping[Pair, float] = field(default_factory=dict)
    limits: Mapping[str, Host] = field(default_factory=dict)


def to_cluster(survey: Survey, *, name: str = "measured", precision: str = "float32") -> Cluster:
    """The cluster that was measured, with islands called ``island-0``, ``island-1``, …

    Args:
        precision: whose speed is a device's; the one that was measured, if only one was.
    """
    ways = {pair: way_rule(way) for pair, way in survey.ways.items() if pair[0] != pair[1]}
    found = find_islands(list(survey.hosts), {pair: rule.bandwidth_bytes_per_s for pair, rule in ways.items()})
    inventory = Inventory(
        name=name,
        devices=[device_of(peer, facts, precision) for peer, facts in survey.devices.items()],
        memory={host: facts.memory_bytes for host, facts in survey.hosts.items()},
        islands={f"island-{n}": hosts for n, hosts in enumerate(found)},
        ways=ways,
        within_host=within_host(survey) or ASSUMED_WITHIN_HOST,
        spread={pair: way.bandwidth.spread for pair, way in survey.ways.items()},
    )
    return assemble(inventory)


def assemble(made_of: Inventory) -> Cluster:
    """The cluster with as few rules as say the same."""
    island = {host: name for name, hosts in made_of.islands.items() for host in hosts}
    within, rules = {}, {}
    for here, hosts in made_of.islands.items():
        for there, others in made_of.islands.items():
            pairs = [(a, b) for a in hosts for b in others if a != b]
            if not pairs:
                continue
            common = _common([made_of.ways[pair] for pair in pairs])
            if here == there:
                within[here] = common
            else:
                rules[here, there] = common
            for pair in pairs:
                if _differs(made_of.ways[pair], common, made_of.spread.get(pair, 0.0)):
                    rules[pair] = replace(made_of.ways[pair], shared=False)
    links = Links(island=island, within_host=made_of.within_host, within_island=within, rules=rules)
    return Cluster(
        name=made_of.name,
        devices=tuple(made_of.devices),
        hosts={host: _host(host, made_of, island[host], limit) for host, limit in fastest(links).items()},
        islands={name: Island(name=name, number=n) for n, name in enumerate(made_of.islands)},
        links=links,
    )


def way_rule(way: Way, old: Rule | None = None) -> Rule:
    """What the file says of a measured way; price, loss and sharing, which were not measured, are `old`'s.

    Jitter is said only where it stands out from what the processes' own scheduling does.
    """
    latency = rounded(way.latency_s)
    noticed = way.pings >= 10 and way.jitter_s > max(CLEARLY * way.latency_s, SMALL_JITTER_S)
    known = old or Rule(latency_s=latency, bandwidth_bytes_per_s=1.0)
    return replace(
        known,
        latency_s=latency,
        bandwidth_bytes_per_s=_rounded_bits(way.bandwidth.value),
        jitter_s=rounded(way.jitter_s) if noticed and latency else 0.0,
    )


def within_host(survey: Survey) -> Rule | None:
    """Between two devices of one host, as measured on all hosts that have two; None if none has."""
    found = [way_rule(way) for (a, b), way in survey.ways.items() if a == b]
    return replace(_common(found), jitter_s=0.0) if found else None


def device_of(name: str, facts: DeviceFacts, precision: str) -> Device:
    speed = facts.flops.get(precision) or next(iter(facts.flops.values()))
    return Device(
        name=name,
        host=facts.host,
        kind=facts.kind,
        flops=rounded(speed.value),
        memory_bytes=_whole_mebibytes(facts.memory_bytes),
        memory_bandwidth_bytes_per_s=rounded(facts.memory_bandwidth.value),
    )


def rounded(value: float) -> float:
    """`value` with three significant digits."""
    return float(f"{value:.3g}")


def _rounded_bits(bytes_per_s: float) -> float:
    """The same in bits/s, as networks are written."""
    return rounded(8.0 * bytes_per_s) / 8.0


def _whole_mebibytes(nbytes: float) -> float:
    return float(max(1, int(nbytes) >> 20) << 20)


def _common(rules: Sequence[Rule]) -> Rule:
    """The rule for all these: medians of what is measured, and what most of them have of what a person wrote."""
    return Rule(
        latency_s=rounded(median(rule.latency_s for rule in rules)),
        bandwidth_bytes_per_s=_rounded_bits(median(rule.bandwidth_bytes_per_s for rule in rules)),
        jitter_s=rounded(median(rule.jitter_s for rule in rules)),
        shared=_most([rule.shared for rule in rules]),
        price_per_byte=_most([rule.price_per_byte for rule in rules]),
        loss=_most([rule.loss for rule in rules]),
    )


def _most(values: Iterable[Any]) -> Any:
    return Counter(values).most_common(1)[0][0]


def _differs(rule: Rule, common: Rule, spread: float) -> bool:
    if (rule.price_per_byte, rule.loss) != (common.price_per_byte, common.loss):
        return True
    bandwidth = abs(rule.bandwidth_bytes_per_s / common.bandwidth_bytes_per_s - 1.0)
    latency = abs(rule.latency_s - common.latency_s)
    return bandwidth > max(CLEARLY, spread) or latency > max(CLEARLY * common.latency_s, SMALL_LATENCY_S)


def _host(name: str, made_of: Inventory, island: str, limit: tuple[float, float]) -> Host:
    known = made_of.limits.get(name)
    return Host(
        name=name,
        island=island,
        up_bytes_per_s=known.up_bytes_per_s if known else limit[0],
        down_bytes_per_s=known.down_bytes_per_s if known else limit[1],
        memory_bytes=_whole_mebibytes(made_of.memory[name]),
        price_per_hour=known.price_per_hour if known else 0.0,
    )


# ------------------------------------------------------------------------------------------------------------ text


def as_text(cluster: Cluster, survey: Survey, *, when: str) -> str:
    """`cluster` as a cluster file in which every measured number has a comment that says how sure it is.

    Args:
        survey: the newest one; what it says nothing about was known before.
        when: the date and time, for the first line.
    """
    blocks = clusters.dump(cluster).split("\n", 1)[1].split("\n\n")
    said = [_commented(block, cluster, survey) for block in blocks]
    return "\n".join([*comment(_head(cluster, survey, when)), "", "\n\n".join(said)])


def _head(cluster: Cluster, survey: Survey, when: str) -> str:
    kept = [host for host in cluster.hosts if host not in survey.hosts]
    lines = [
        f"Measured by shoal probe on {when}: {_count(len(survey.devices), 'device')} on"
        f" {_count(len(survey.hosts), 'host')}, in {show_seconds(rounded(survey.seconds))},"
        f" with {show_bytes(survey.nbytes)} of traffic.",
        "Latencies are half the median round trip. Bandwidths are of payload, some 5 % below the wire's rate, each"
        " measured alone: what several pairs get at once, and packet loss, were not measured.",
        "Speeds are those of large matrix products; a model attains less, often a third to a half.",
        "± is the half-width of a 95 % interval for bandwidths, and of the middle half of the runs for devices.",
    ]
    if clocks := _clocks(survey):
        lines.append(f"Clocks against {survey.leader}'s, in milliseconds: {clocks}.")
    if kept:
        lines.append(f"Kept from an older file, not measured now: {', '.join(kept)}.")
    return "\n".join(lines)


def _clocks(survey: Survey) -> str:
    """Offset and its largest error, of each host but the leader's."""
    told = []
    for host, facts in survey.hosts.items():
        if host != survey.leader and facts.clock_offset_s is not None and facts.clock_error_s is not None:
            told.append(f"{host} {1e3 * facts.clock_offset_s:+.3g} ±{1e3 * facts.clock_error_s:.2g}")
    return ", ".join(told)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


def _commented(block: str, cluster: Cluster, survey: Survey) -> str:
    table = tomllib.loads(block)
    match table:
        case {"device": [{"name": name}]} if name in survey.devices:
            text = _of_device(survey.devices[name])
        case {"island": [{"name": name, "latency": _}]}:
            text = _of_ways(name, name, cluster, survey)
        case {"link": [{"from": src, "to": dst}]}:
            text = _of_ways(src, dst, cluster, survey)
        case {"defaults": {"within_host": _}}:
            inside = sum(a == b for a, b in survey.ways)
            text = f"Measured on {inside} of {len(survey.hosts)} hosts." if inside else "Assumed."
        case _:
            return block
    return "\n".join([*comment(text), block])


def _of_device(facts: DeviceFacts) -> str:
    speeds = [f"{precision} {show_flops(rounded(f.value))} ±{f.spread:.1%}" for precision, f in facts.flops.items()]
    return f"{', '.join(speeds)}; memory ±{facts.memory_bandwidth.spread:.1%}"


def _of_ways(src: str, dst: str, cluster: Cluster, survey: Survey) -> str:
    """How sure the rule between two places is. One that holds both ways is judged by both."""
    sides = {place: [h.name for h in cluster.hosts.values() if place in (h.name, h.island)] for place in (src, dst)}
    pairs = [(a, b) for a in sides[src] for b in sides[dst] if a != b]
    pairs += [(b, a) for a, b in pairs if (b, a) not in pairs]
    ways = [survey.ways[pair] for pair in pairs if pair in survey.ways]
    if not ways:
        return "Not measured now: as it was, or taken from the slowest links of both."
    rates, trips = [way.bandwidth.value for way in ways], [way.latency_s for way in ways]
    unsure = sum(not way.settled for way in ways)
    parts = [
        f"{show_bandwidth(rounded(min(rates)))} to {show_bandwidth(rounded(max(rates)))}"
        f" ±{max(way.bandwidth.spread for way in ways):.1%}",
        f"{show_seconds(rounded(min(trips)))} to {show_seconds(rounded(max(trips)))}",
        f"{len(ways)} of {len(pairs)} directions measured",
    ]
    if unsure:
        parts.append(f"{unsure} not settled within the bound")
    return ", ".join(parts)
