"""Islands in pairs at distance 1, 2, 4…, half of the pairs at a time: only half of the islands use the slow network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shoal.topology._partition import Partition
from shoal.topology._protocol import Peer


class AlternatingExponentialRing(Partition):
    """AER: the one-peer exponential graph over islands, in which only every other pair talks across at a time.

    Islands are the nodes 0 … N-1, in the order of their numbers. Round r = 0 … ceil(log2 N)-1 pairs node i with node
    i XOR 2^r and takes two steps. The pairs of a round, in the order of their lower node, are coloured alternately. In
    the first step each pair of colour 0 averages over all peers of both islands, while every other island averages
    inside itself; in the second step the colours change places. The period is 2·ceil(log2 N) steps.

    A node whose partner would be ≥ N has none in that round (N not a power of two) and averages inside itself.

    What is exact:

    * one island: the average at every step. Two islands, of any sizes: at every other step.
    * N = 2^p and all islands of one size: the average after 2p steps, counted from the start of a round.
    * otherwise (N not a power of two, or unequal islands): not in finite time, sizes like 1, 2, 2, 4 apart. W(t) is
      doubly stochastic all the same, the mean is kept, and consensus is reached in the limit, by the factor that
      `shoal.topology.spectral` gives per period.

    Islands of one are fine: "averages inside itself" then means that the peer keeps its value. A peer that `island`
    does not mention is on island 0.

    Source: Wang et al., From Promise to Practice (ICLR 2025), for 2^p equal islands; the rest is ours.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], tuple[Sequence[Peer], Mapping[Peer, int], _Islands]] = {}

    def period(self, peers: Sequence[Peer], island: Mapping[Peer, int]) -> int:
        return max(1, 2 * _rounds(len(self._islands(peers, island).members)))

    def group(self, peers: Sequence[Peer], island: Mapping[Peer, int], t: int, me: Peer) -> Sequence[Peer]:
        islands = self._islands(peers, island)
        node = islands.node[me]
        other = _across(node, len(islands.members), t)
        if other is None:
            return islands.members[node]
        return tuple(sorted(islands.members[node] + islands.members[other]))

    def _islands(self, peers: Sequence[Peer], island: Mapping[Peer, int]) -> _Islands:
        """Who is on which node. Costs O(n), so it is remembered for the very objects asked about: owners are never
        changed in place, a regrouping makes new ones. Holding the objects keeps their identities from being reused."""
        key = (id(peers), id(island))
        if key not in self._known:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            self._known[key] = (peers, island, _Islands.of(peers, island))
        return self._known[key][2]


_REMEMBERED = 64
"""Owner sets kept in memory per topology: at least the sync groups of one worker."""


@dataclass(frozen=True, slots=True)
class _Islands:
    members: tuple[tuple[Peer, ...], ...]  # per node, sorted
    node: Mapping[Peer, int]

    @classmethod
    def of(cls, peers: Sequence[Peer], island: Mapping[Peer, int]) -> _Islands:
        by_number: dict[int, list[Peer]] = {}
        for peer in peers:
            by_number.setdefault(island.get(peer, 0), []).append(peer)
        members = tuple(tuple(by_number[number]) for number in sorted(by_number))
        return cls(members, {peer: node for node, group in enumerate(members) for peer in group})


def _rounds(nodes: int) -> int:
    return (nodes - 1).bit_length()


def _across(node: int, nodes: int, t: int) -> int | None:
    """The node that `node` averages with at step t, or None if it averages inside itself."""
    if nodes == 1:
        return None
    r, colour = divmod(t % (2 * _rounds(nodes)), 2)
    other = node ^ (1 << r)
    if other >= nodes:
        return None
    low = min(node, other)
    # Lower nodes lack bit r. Counted in their order they alternate as bit 0 does, or as bit 1 where r = 0.
    mine = (low if r else low >> 1) & 1
    return other if mine == colour else None


strategy = AlternatingExponentialRing
