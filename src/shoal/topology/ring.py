"""One neighbour of a ring at a time, in turns: the least traffic per step, and the slowest agreement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shoal.topology._partition import Partition, place
from shoal.topology._protocol import Peer


class Ring(Partition):
    """The one-peer ring: at every step the cycle is cut into pairs that average with weight 1/2.

    * n even: period 2; pairs (0,1)(2,3)…, then (n-1,0)(1,2)…. The consensus error shrinks by exactly cos(2π/n) per
      period, so n = 4 is exact after one period.
    * n odd: period n; at step t peer t mod n keeps its value and the others are paired along the cycle, starting
      behind it. Nobody is left out more often than the others.
    * n = 2: the pair, exact after every step; n = 1: nobody to mix with.

    Source: Wang et al., From Promise to Practice (ICLR 2025), for even n; the odd case is ours.
    """

    def period(self, peers: Sequence[Peer], island: Mapping[Peer, int]) -> int:
        n = len(peers)
        return n if n % 2 else min(2, n // 2)

    def group(self, peers: Sequence[Peer], island: Mapping[Peer, int], t: int, me: Peer) -> Sequence[Peer]:
        n, i = len(peers), place(peers, me)
        first = t % n + 1 if n % 2 else t % 2  # where the first pair begins
        behind = (i - first) % n
        if n % 2 and behind == n - 1:  # the peer just before the first pair, and so the idle one
            return (me,)
        other = peers[(i - 1 if behind % 2 else i + 1) % n]
        return (me, other) if me < other else (other, me)


strategy = Ring
