"""How fast a topology agrees."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from shoal.topology._protocol import Peer, Topology, matrix


def spectral(topology: Topology, peers: Sequence[Peer], island: Mapping[Peer, int]) -> float:
    """The contraction per period: the factor by which mixing alone shrinks the consensus error, at worst.

    It is the largest singular value of W(T-1)…W(1)W(0) - J, where T is the period and J = 11ᵀ/n. 0 (to rounding) means
    that the average is exact after a period, 1 that some disagreement is never removed. The spectral gap per period is
    one minus it. Costs T products of [n, n] matrices.
    """
    n = len(peers)
    product = np.eye(n)
    for t in range(topology.period(peers, island)):
        product = matrix(topology, peers, island, t) @ product
    return float(np.linalg.norm(product - 1.0 / n, ord=2))
