"""A ring's traffic on the network, as one flow per way, and what other traffic makes of the time it takes.

Everything that a peer sends is one flow from the moment when the last peer has joined, so it slows others down and is
slowed down by them. A way's *lag* is how much later its flow is than it would be alone. The ring is late by the larger
of what its two kinds of circuits lose (the recursion in `shoal.worlds.ring_time` is a max-plus system, and its period
is that of its slowest circuit):

* one way, sending chunk after chunk, loses its lag less the time for which it would have been idle;
* a chunk travelling round the ring loses the mean lag of all ways, less what the ring waits for a slower way anyhow.

Without other traffic nothing lags, and the times are the recursion's own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from shoal.world import Peer
from shoal.worlds.clock import VirtualLoop
from shoal.worlds.post import Post
from shoal.worlds.ring_time import Ring, Vector, ring_bytes

_ALONE = 1.0 - 1e-9  # a way that gets this share of its rate is not slowed down


class RingTraffic:
    """Args:
    costs: bytes of each chunk.
    times, sent: what `ring_times` says, in seconds from now, when the last peer has joined.
    finish: called with the place of each peer that has the result, at that time.
    """

    def __init__(
        self,
        loop: VirtualLoop,
        post: Post,
        peers: Sequence[Peer],
        ring: Ring,
        costs: Vector,
        times: Vector,
        sent: Vector,
        finish: Callable[[int], None],
    ) -> None:
        self._loop, self._post, self._finish = loop, post, finish
        now, n, nbytes = loop.time(), len(peers), ring_bytes(costs)
        self._times: list[float] = (times + now).tolist()
        self._order = np.argsort(times, kind="stable").tolist()
        self._finished = 0
        alone = nbytes / ring.rate
        self._idle = np.maximum(0.0, sent - alone)
        touching = ring.touch * (5.0 * costs.sum() - 3.0 * costs)  # adding n - 1 chunks, writing all
        circuit = float(np.mean(alone + 2 * (n - 1) * ring.latency + touching))
        self._spare = max(0.0, float(times.max()) - circuit)
        self._rate = ring.rate.tolist()
        self._lag, self._since, self._share = [0.0] * n, [now] * n, [1.0] * n
        self._lines: tuple[float, Vector, Vector] | None = (0.0, np.zeros(0), np.zeros(0))
        self._planned = math.inf
        self._way_of: dict[int, int] = {}
        for r, amount in enumerate(nbytes.tolist()):
            if amount > 0.0 and self._rate[r] < math.inf:
                flow = post.flow(peers[r], peers[(r + 1) % n], amount, watcher=self._watch, ended=self._ended)
                self._way_of[flow] = r
        self._plan_at(self._times[self._order[0]])

    def stop(self) -> None:
        """Nobody waits any more. What was being sent when all had the result goes on; a broken ring's traffic ends."""
        if self._finished == len(self._order):
            return
        self._finished = len(self._order)
        self._post.break_off(self._way_of)
        self._way_of.clear()

    def _watch(self, flow: int, rate: float) -> None:
        """A way gets `rate` from now on."""
        r = self._way_of.get(flow)
        if r is not None:
            share = rate / self._rate[r]
            self._set_share(r, 1.0 if share > _ALONE else share)

    def _ended(self, flow: int) -> None:
        self._set_share(self._way_of.pop(flow), 1.0)

    def _set_share(self, r: int, share: float) -> None:
        before = self._share[r]
        if share == before:
            return
        now = self._loop.time()
        self._lag[r] += (1.0 - before) * (now - self._since[r])
        self._since[r], self._share[r] = now, share
        self._lines = None
        self._plan_at(now)

    def _plan_at(self, when: float) -> None:
        """Have a look at time `when`, unless one is planned before."""
        if when < self._planned:
            self._planned = when
            self._loop.at(when, self._plan, when)

    def _plan(self, when: float) -> None:
        """Finish the peers whose time has come; look again when the next one's has, as things stand now."""
        if when != self._planned:
            return
        self._planned = math.inf
        alone, due = math.nan, 0.0
        while self._finished < len(self._order):
            r = self._order[self._finished]
            if self._times[r] != alone:
                alone = self._times[r]
                due = self._due(alone)
            if due > when:
                self._plan_at(due)
                return
            self._finished += 1
            self._finish(r)

    def _due(self, alone: float) -> float:
        """When the ring is as far as it would be at time `alone` without other traffic, if rates stay as they are.

        A lag is a line, lag(t) = offset + slope t. The ring is there when t = alone + lag(t) for the largest lag.
        """
        if self._lines is None:
            slope = 1.0 - np.array(self._share)
            offset = np.array(self._lag) - slope * np.array(self._since)
            offset = np.append(offset - self._idle, offset.mean() - self._spare)
            slope = np.append(slope, slope.mean())
            grows = slope > 0.0
            speed = 1.0 / (1.0 - slope[grows])
            self._lines = float(offset[~grows].max(initial=0.0)), speed, offset[grows] * speed
        settled, speed, offset = self._lines
        return max(alone + settled, float(np.max(alone * speed + offset, initial=0.0)))
