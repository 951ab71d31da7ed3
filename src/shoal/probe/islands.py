"""Islands: groups of hosts on a fast network, found in measured bandwidths.

Louvain's communities are the candidates (OP-Fence does the same). Modularity alone is not enough, so they are mended:

* it lumps isolated slow hosts together, since each of them has to be somewhere: a community that is not clearly faster
  inside than outside is searched for communities of its own, and falls apart if it has none;
* it gives a lone host to an island that it does not belong to: a host that is clearly slower to the rest of its
  community than the rest is among itself is put out;
* it may cut a uniform network along its noise: communities between which it is as fast as inside them are joined;
* where nothing is clearly faster than anything else there is one island.

Weights on a linear scale or a logarithmic one? Both, because each fails where the other does not. Measured on made
matrices with ±20 % noise, 40 seeds each, partitions recovered by Louvain alone, and by all of this:

===========================================  ======  ===========  ======
hosts                                        linear  logarithmic  mended
===========================================  ======  ===========  ======
three islands of 4, 1250 or 10 or 2 times    40      40           40
three islands of 2, 2 times as fast inside   0       39           40
eight hosts, all alike                       40      0            40
eight hosts and three lone ones, 10 times    0       0            40
two hosts and a lone one, 10 times           0       0            40
two hosts and five lone ones, 2 times        0       0            38
===========================================  ======  ===========  ======

The last case needs a third candidate: what holds together above the widest gap in the list of bandwidths. All three are
mended, and the partition with the most hosts on islands that are clearly fast wins; the first of equals.

Source: V. Blondel et al., "Fast unfolding of communities in large networks", J. Stat. Mech. 2008.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations, pairwise
from statistics import median

import networkx as nx

from shoal.probe.figures import Pair

CLEARLY = 1.5
"""Faster by this factor is clearly faster: well over what 20 % of noise does to a median, well under 2."""
SEED = 0

Part = frozenset[str]
Speed = Mapping[Pair, float]


def find_islands(hosts: Sequence[str], bandwidth: Mapping[Pair, float]) -> list[list[str]]:
    """The hosts, island by island; both in the order of `hosts`.

    Args:
        bandwidth: bytes/s of every ordered pair of different hosts; the slower direction counts.
    """
    speed = {}
    for a, b in combinations(hosts, 2):
        speed[a, b] = speed[b, a] = min(bandwidth[a, b], bandwidth[b, a])
    found = [_search(frozenset(hosts), speed, candidate) for candidate in (_linear, _logarithmic, _above_the_gap)]
    best = max(found, key=lambda parts: sum(len(part) for part in parts if _is_clear(part, parts, speed)))
    if not any(_is_clear(part, best, speed) for part in best):
        best = [frozenset(hosts)]
    place = {host: n for n, host in enumerate(hosts)}
    return sorted((sorted(part, key=place.__getitem__) for part in best), key=lambda part: place[part[0]])


def _search(hosts: Part, speed: Speed, candidate: Callable[[Part, Speed], list[Part]]) -> list[Part]:
    """Communities of `hosts`, mended."""
    parts = [piece for part in _join(candidate(hosts, speed), speed) for piece in _without_strangers(part, speed)]
    mended: list[Part] = []
    for part in parts:
        if len(part) == 1 or len(parts) == 1 or _is_clear(part, parts, speed):
            mended.append(part)
        else:
            inner = _search(part, speed, candidate)
            mended += inner if len(inner) > 1 else [frozenset([host]) for host in part]
    return _scattered(_join(mended, speed), speed)


def _linear(hosts: Part, speed: Speed) -> list[Part]:
    return _louvain(hosts, {pair: speed[pair] for pair in combinations(sorted(hosts), 2)})


def _logarithmic(hosts: Part, speed: Speed) -> list[Part]:
    pairs = list(combinations(sorted(hosts), 2))
    slowest = min((speed[pair] for pair in pairs), default=1.0)
    return _louvain(hosts, {pair: math.log(speed[pair] / slowest) + 1e-9 for pair in pairs})


def _louvain(hosts: Part, weight: Mapping[Pair, float]) -> list[Part]:
    graph: nx.Graph[str] = nx.Graph()
    graph.add_nodes_from(sorted(hosts))
    graph.add_weighted_edges_from((a, b, value) for (a, b), value in weight.items())
    return [frozenset(part) for part in nx.community.louvain_communities(graph, weight="weight", seed=SEED)]


def _above_the_gap(hosts: Part, speed: Speed) -> list[Part]:
    """What is connected by pairs that are faster than the widest gap, as a ratio, in the list of bandwidths."""
    pairs = list(combinations(sorted(hosts), 2))
    known = sorted(speed[pair] for pair in pairs)
    gaps = [(high / low, high) for low, high in pairwise(known)]
    graph: nx.Graph[str] = nx.Graph()
    graph.add_nodes_from(sorted(hosts))
    if gaps:
        graph.add_edges_from(pair for pair in pairs if speed[pair] >= max(gaps)[1])
    return [frozenset(part) for part in nx.connected_components(graph)]


def _without_strangers(part: Part, speed: Speed) -> list[Part]:
    """`part`, and apart from it, slowest first, each host that is clearly slower to the rest than the rest inside."""
    alone: list[Part] = []
    while len(part) > 2:
        to_rest = {host: _between(frozenset([host]), part - {host}, speed) for host in part}
        slowest = min(part, key=lambda host: (to_rest[host], host))
        if CLEARLY * to_rest[slowest] >= _inside(part - {slowest}, speed):
            break
        alone.append(frozenset([slowest]))
        part = part - {slowest}
    return [part, *alone]


def _join(parts: Sequence[Part], speed: Speed) -> list[Part]:
    """`parts`, with those joined between which it is nearly as fast as inside both."""
    parts = sorted(parts, key=min)
    while True:
        for a, b in combinations(parts, 2):
            if len(a) + len(b) > 2 and CLEARLY * _between(a, b, speed) >= max(_inside(a, speed), _inside(b, speed)):
                parts = sorted([part for part in parts if part not in (a, b)] + [a | b], key=min)
                break
        else:
            return parts


def _scattered(parts: Sequence[Part], speed: Speed) -> list[Part]:
    """`parts`, with those that are not clearly faster inside than outside taken apart; the only one stays."""
    if len(parts) == 1:
        return list(parts)
    kept = [part for part in parts if _is_clear(part, parts, speed)]
    return kept + [frozenset([host]) for part in parts if part not in kept for host in part]


def _is_clear(part: Part, parts: Sequence[Part], speed: Speed) -> bool:
    """Is it clearly faster inside `part` than from it to any other?"""
    outside = [_between(part, other, speed) for other in parts if other != part]
    return len(part) > 1 and bool(outside) and _inside(part, speed) > CLEARLY * max(outside)


def _inside(part: Part, speed: Speed) -> float:
    """Median bandwidth inside; 0 for a single host, which is joined to whatever is as fast as itself inside."""
    return median([speed[pair] for pair in combinations(sorted(part), 2)]) if len(part) > 1 else 0.0


def _between(a: Part, b: Part, speed: Speed) -> float:
    return median([speed[x, y] for x in a for y in b])
