"""Who is measured at the same time as whom.

Pairs of hosts come in rounds that are matchings (the circle method), so that no host is in two pairs at once. Within a
round two pairs are still kept apart if they may share something between them, because then each would be measured at
half its rate:

* processors: hosts on one physical machine (containers, network namespaces), which move each other's bytes;
* an uplink: any group of hosts that are nearer to one another than to the others, at whatever scale, may hang on one
  wire. Two pairs that both leave the same such group are measured one after the other. Pairs inside groups, and pairs
  of quite different groups, go at once: a switch serves all its ports.

What the groups are is read off the latencies, which are measured before and which tiny messages do not disturb.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from shoal.probe.figures import Pair

NEAR = 1e-3
"""Hosts within so many seconds, one way, are one group whatever else there is: a building, not a city."""


def circle(hosts: Sequence[str]) -> list[list[Pair]]:
    """Rounds of pairs: each two hosts meet exactly once, and nobody is in two pairs of a round.

    Source: the circle method of round-robin tournaments (one-factorisation of the complete graph).
    """
    ring: list[str | None] = [*hosts, *([None] if len(hosts) % 2 else [])]
    rounds = []
    for _ in range(len(ring) - 1):
        half = len(ring) // 2
        pairs = zip(ring[:half], reversed(ring[half:]), strict=True)
        rounds.append([(a, b) for a, b in pairs if a is not None and b is not None])
        ring = [ring[0], ring[-1], *ring[1:-1]]
    return rounds


def groups(latency: Mapping[Pair, float]) -> set[frozenset[str]]:
    """Groups of hosts that are connected by ways within 1 ms, 2 ms, 4 ms, ...; neither single hosts nor all of them.

    Args:
        latency: seconds, of each pair of hosts in one of its two orders.
    """
    hosts = sorted({host for pair in latency for host in pair})
    found: set[frozenset[str]] = set()
    near = NEAR
    while True:
        parts = _connected(hosts, [pair for pair, seconds in latency.items() if seconds <= near])
        if len(parts) <= 1:
            return found
        found.update(part for part in parts if len(part) > 1)
        near *= 2.0


def apart(pair: Pair, other: Pair, physical: Mapping[str, str], uplinks: set[frozenset[str]]) -> bool:
    """Must these two pairs of hosts be measured one after the other?

    Args:
        physical: host → the machine whose processors it uses.
        uplinks: groups of hosts that may share one.
    """
    mine, theirs = {physical[host] for host in pair}, {physical[host] for host in other}
    if mine & theirs:
        return True
    return any(_leaves(pair, group) and _leaves(other, group) for group in uplinks)


def batches(pairs: Sequence[Pair], keep_apart: Callable[[Pair, Pair], bool]) -> list[list[Pair]]:
    """`pairs` in batches that may go at once: each joins the first batch in which it disturbs nobody."""
    made: list[list[Pair]] = []
    for pair in pairs:
        batch = next((batch for batch in made if not any(keep_apart(pair, other) for other in batch)), None)
        if batch is None:
            made.append([pair])
        else:
            batch.append(pair)
    return made


def _leaves(pair: Pair, group: frozenset[str]) -> bool:
    return (pair[0] in group) != (pair[1] in group)


def _connected(hosts: Sequence[str], near: Sequence[Pair]) -> list[frozenset[str]]:
    root = {host: host for host in hosts}

    def find(host: str) -> str:
        while root[host] != host:
            root[host] = host = root[root[host]]
        return host

    for a, b in near:
        root[find(a)] = find(b)
    parts: dict[str, set[str]] = {}
    for host in hosts:
        parts.setdefault(find(host), set()).add(host)
    return [frozenset(part) for part in parts.values()]
