"""Everybody averages with everybody: consensus after one mix, at the price of all-to-all traffic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shoal.topology._partition import Partition
from shoal.topology._protocol import Peer


class Complete(Partition):
    """One group of all peers, weight 1/n each. Exact average after one mix, for every n."""

    fixed = True

    def period(self, peers: Sequence[Peer], island: Mapping[Peer, int]) -> int:
        return 1

    def group(self, peers: Sequence[Peer], island: Mapping[Peer, int], t: int, me: Peer) -> Sequence[Peer]:
        return peers


strategy = Complete
