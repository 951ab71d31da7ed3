"""One peer at distance 1, 2, 4, 8… in turns: exact average after log2(n) mixes when n is a power of two."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shoal.topology._partition import place
from shoal.topology._protocol import Peer


class OnePeerExponential:
    """At step t a peer averages, with weight 1/2, with one peer at distance 2^k, k = t mod ceil(log2 n).

    * n = 2^p: pairs i ↔ i XOR 2^k, the edges of a hypercube. Symmetric; the exact average after p mixes.
    * other n: a directed circulant shift; peer i takes from (i - 2^k) mod n and gives to (i + 2^k) mod n. Every W(t) is
      doubly stochastic, so the mean is kept, but the average is never exact in finite time: only the limit is.
      The consensus error shrinks by `shoal.topology.spectral` per period.

    Source: Assran et al., Stochastic Gradient Push (ICML 2019); Ying et al., Exponential Graph is Provably Efficient
    for Decentralized Deep Training (NeurIPS 2021).
    """

    fixed = False
    directed = True  # whenever n is not a power of two

    def period(self, peers: Sequence[Peer], island: Mapping[Peer, int]) -> int:
        return max(1, _log2_ceil(len(peers)))

    def takes(self, peers: Sequence[Peer], island: Mapping[Peer, int], t: int, me: Peer) -> Mapping[Peer, float]:
        n, i = len(peers), place(peers, me)
        if n == 1:
            return {me: 1.0}
        source = peers[_partner(n, i, t) if _is_power_of_two(n) else (i - _distance(n, t)) % n]
        return {me: 0.5, source: 0.5} if me < source else {source: 0.5, me: 0.5}

    def gives(self, peers: Sequence[Peer], island: Mapping[Peer, int], t: int, me: Peer) -> Sequence[Peer]:
        n, i = len(peers), place(peers, me)
        if n == 1:
            return ()
        return (peers[_partner(n, i, t) if _is_power_of_two(n) else (i + _distance(n, t)) % n],)

    def group(self, peers: Sequence[Peer], island: Mapping[Peer, int], t: int, me: Peer) -> Sequence[Peer] | None:
        if not _is_power_of_two(len(peers)):
            return None
        return tuple(self.takes(peers, island, t, me))


def _distance(n: int, t: int) -> int:
    return 1 << (t % _log2_ceil(n))


def _partner(n: int, i: int, t: int) -> int:
    return i ^ _distance(n, t)


def _log2_ceil(n: int) -> int:
    return (n - 1).bit_length()


def _is_power_of_two(n: int) -> bool:
    return n & (n - 1) == 0


strategy = OnePeerExponential
