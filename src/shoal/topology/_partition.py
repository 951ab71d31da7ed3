"""Topologies whose W(t) is at every step a partition into groups that average: the group says everything."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Mapping, Sequence

from shoal.topology._protocol import Peer


class Partition(ABC):
    """Every peer is in exactly one group per step and weighs each member, itself included, 1/|group|.

    Such a W(t) is symmetric, doubly stochastic and a projection for any partition, groups of one included: a peer that
    is alone keeps its own value.
    """

    fixed = False
    directed = False

    @abstractmethod
    def period(self, peers: Sequence[Peer], island: Mapping[Peer, int]) -> int: ...

    @abstractmethod
    def group(self, peers: Sequence[Peer], island: Mapping[Peer, int], t: int, me: Peer) -> Sequence[Peer]: ...

    def takes(self, peers: Sequence[Peer], island: Mapping[Peer, int], t: int, me: Peer) -> Mapping[Peer, float]:
        group = self.group(peers, island, t, me)
        return dict.fromkeys(group, 1.0 / len(group))

    def gives(self, peers: Sequence[Peer], island: Mapping[Peer, int], t: int, me: Peer) -> Sequence[Peer]:
        group = self.group(peers, island, t, me)
        at = place(group, me)
        return (*group[:at], *group[at + 1 :])


def place(peers: Sequence[Peer], me: Peer) -> int:
    """The position of `me` in the sorted `peers`, in O(log n).

    Raises:
        KeyError: `me` is not one of `peers`.
    """
    at = bisect_left(peers, me)
    if at == len(peers) or peers[at] != me:
        raise KeyError(me)
    return at
