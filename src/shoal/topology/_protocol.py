"""The seam's signature, and the matrix that any topology stands for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Peer = str


class Topology(Protocol):
    """Mixing weights over named peers. `peers` is sorted everywhere; `island` maps a peer to its island's number.

    Every W(t) must be doubly stochastic with a positive diagonal, or mixing would change the workers' mean. The peers
    and islands handed in are never changed in place, so an implementation may remember what it derived from them.
    """

    @property
    def fixed(self) -> bool:
        """The same neighbours at every step."""
        ...

    @property
    def directed(self) -> bool:
        """Some W(t) is not symmetric, for some number of peers."""
        ...

    def period(self, peers: Sequence[Peer], island: Mapping[Peer, int]) -> int:
        """W(t + period) = W(t)."""
        ...

    def takes(self, peers: Sequence[Peer], island: Mapping[Peer, int], t: int, me: Peer) -> Mapping[Peer, float]:
        """Row `me` of W(t): non-zero weights, me included, in sorted order of peers; they sum to 1."""
        ...

    def gives(self, peers: Sequence[Peer], island: Mapping[Peer, int], t: int, me: Peer) -> Sequence[Peer]:
        """The other peers whose row of W(t) has a weight for me, sorted."""
        ...

    def group(self, peers: Sequence[Peer], island: Mapping[Peer, int], t: int, me: Peer) -> Sequence[Peer] | None:
        """My group, sorted and with me in it, if W(t) is a partition into groups with weight 1/|group| each.

        None where it is not; then it is None for all peers of that step.
        """
        ...


def matrix(topology: Topology, peers: Sequence[Peer], island: Mapping[Peer, int], t: int) -> NDArray[np.float64]:
    """W(t) as an [n, n] array in the order of `peers`."""
    at = {peer: n for n, peer in enumerate(peers)}
    w = np.zeros((len(peers), len(peers)))
    for me in peers:
        for peer, weight in topology.takes(peers, island, t, me).items():
            w[at[me], at[peer]] = weight
    return w
