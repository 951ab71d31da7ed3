"""When a ring all-reduce ends, without sending its messages: the max-plus recursion that the messages would obey.

Peer r sends chunk after chunk to peer r+1. Send k starts when send k-1 has left and when what it carries is there; what
it carries is what arrived as number k-1, added to the peer's own part during the first round.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ring:
    """A ring's ways and devices, one entry per peer; way r leads from peer r to peer r+1.

    `rate` in bytes/s may be infinite; `latency` in seconds; `touch` is seconds per byte touched on the device.
    """

    rate: Vector
    latency: Vector
    touch: Vector


def ring_times(ring: Ring, costs: Vector, joined: Vector) -> tuple[Vector, Vector]:
    """When each peer has the result, and when each has sent its last byte, for which it does not wait.

    Args:
        costs: bytes of each of the n chunks.
        joined: when each peer joins the collective.
    """
    n = len(costs)
    seconds, adding = 1.0 / ring.rate, 3.0 * ring.touch
    twice = np.concatenate((costs, costs))  # twice[n - k : 2 n - k] are the costs of what each peer sends as number k
    ready = sent = joined
    for k in range(2 * (n - 1)):
        now, then = n - k % n, n - (k + 1) % n
        start = np.maximum(ready, sent)
        sent = start + twice[now : now + n] * seconds
        leaving = sent + ring.latency
        ready = np.empty(n)
        ready[0], ready[1:] = leaving[-1], leaving[:-1]
        np.maximum(start, ready, out=ready)
        if k < n - 1:
            ready += adding * twice[then : then + n]
    return ready + 2.0 * ring.touch * costs.sum(), sent


def ring_bytes(costs: Vector) -> Vector:
    """Bytes that each peer sends: every chunk twice, except the one that it completes and the one that comes last."""
    return 2.0 * costs.sum() - np.roll(costs, -1) - np.roll(costs, -2)
