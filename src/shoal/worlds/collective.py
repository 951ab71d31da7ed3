"""A collective of virtual peers in one go: the bits of the ring of messages and its time, without 2(n-1)n messages.

The peers meet; when the last has joined, the sum is computed with the ring's order of additions and the time at which
each peer has it with the ring's recursion (`shoal.worlds.ring_time`), on the rates that the ring's ways have if nobody
else uses them. Without other traffic that is what the messages would take, if no two of the ring's ways share a
resource; if some do, they are taken to share it all the time.

Other traffic is met approximately, see `shoal.worlds.ring_traffic`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from shoal.errors import BadMessage, Late, PeerLost, Race
from shoal.network import FluidNetwork
from shoal.trace import Span
from shoal.world import Peer, Tag
from shoal.worlds.clock import VirtualLoop
from shoal.worlds.post import Address, Post, version
from shoal.worlds.ring import chunk_nbytes, position, ring_sum
from shoal.worlds.ring_time import Ring, Vector, ring_bytes, ring_times
from shoal.worlds.ring_traffic import RingTraffic

_RINGS_KEPT = 256  # groups may be drawn anew at every step


class _Member:
    """One peer in a collective, from its joining to its result."""

    __slots__ = ("address", "done", "joined", "nbytes", "version", "x")

    def __init__(self, address: Address, x: Tensor, nbytes: int, joined: float, done: asyncio.Future[None]) -> None:
        self.address, self.x, self.nbytes, self.joined, self.done = address, x, nbytes, joined, done
        self.version = version(x)

    def fail(self, error: Exception) -> None:
        if not self.done.done():
            self.done.set_exception(error)

    def brings(self) -> tuple[int, torch.dtype, int]:
        """What must be the same for all."""
        return self.x.numel(), self.x.dtype, self.nbytes


class Collectives:
    """All collectives of a run. `touch` gives a peer's seconds per byte touched on its device."""

    def __init__(
        self, loop: VirtualLoop, post: Post, *, touch: Callable[[Peer], float], numeric: bool, deadline: float
    ) -> None:
        self.loop, self.post, self.numeric = loop, post, numeric
        self._touch, self._deadline = touch, deadline
        self._open: dict[Tag, list[_Collective]] = {}  # by tag; disjoint groups may use the same one
        self._rings: dict[tuple[Peer, ...], Ring] = {}
        self._times: dict[tuple[tuple[Peer, ...], bytes], tuple[Vector, Vector]] = {}

    async def reduce(self, address: Address, x: Tensor, peers: Sequence[Peer], tag: Tag, nbytes: int) -> None:
        """Replace `x` by its sum over `peers`, in place.

        Raises:
            PeerLost, Late, BadMessage, Race: as the ring of messages would.
        """
        me = address.peer
        gone = address.inbox.first_lost(peers)
        if gone is not None:
            raise PeerLost(gone, tag.step, address.inbox.lost(gone) or "")
        collective = self._find(me, peers, tag)
        member = _Member(address, x, nbytes, self.loop.time(), self.loop.create_future())
        collective.join(me, member)
        try:
            await member.done
        finally:
            collective.leave()

    def lose(self, peer: Peer, by: Sequence[Peer], why: str) -> None:
        """The peers in `by` have found out that `peer` is gone."""
        for collective in [c for collectives in self._open.values() for c in collectives]:
            if collective.needs(peer):
                for each in by:
                    collective.fail(each, PeerLost(peer, collective.tag.step, why))

    def waiting(self, peer: Peer) -> list[str]:
        """The collectives that `peer` is in, in words."""
        pending = [c for collectives in self._open.values() for c in collectives]
        return [str(c) for c in pending if c.holds(peer)]

    def _find(self, me: Peer, peers: Sequence[Peer], tag: Tag) -> _Collective:
        """The collective that `me` joins: the open one of this tag and these peers, or a new one.

        Raises:
            ValueError: `me` is not among `peers`, or one is named twice.
        """
        for collective in self._open.get(tag, ()):
            if collective.takes(me, peers):
                return collective
        position(peers, me)
        fresh = _Collective(self, tuple(peers), tag, self._deadline)
        self._open.setdefault(tag, []).append(fresh)
        return fresh

    def forget(self, collective: _Collective) -> None:
        """`collective` is over."""
        same_tag = self._open[collective.tag]
        same_tag.remove(collective)
        if not same_tag:
            del self._open[collective.tag]

    def ring(self, peers: tuple[Peer, ...]) -> Ring:
        """The ring over `peers` when nothing else uses the network."""
        if peers not in self._rings:
            if len(self._rings) >= _RINGS_KEPT:
                self._rings.clear()
            n = len(peers)
            alone = FluidNetwork(self.post.network.cluster)
            for r in range(n):
                alone.start(r, peers[r], peers[(r + 1) % n], 1.0, 0.0)
            rates = alone.rates()
            self._rings[peers] = Ring(
                rate=np.array([rates[r] for r in range(n)]),
                latency=np.array([alone.latency(peers[r], peers[(r + 1) % n]) for r in range(n)]),
                touch=np.array([self._touch(peer) for peer in peers]),
            )
        return self._rings[peers]

    def times(self, peers: tuple[Peer, ...], costs: Vector, joined: Vector) -> tuple[Vector, Vector]:
        """`ring_times` for peers that joined at these times before now; computed once for those that join together."""
        if joined.any():
            return ring_times(self.ring(peers), costs, joined)
        key = peers, costs.tobytes()
        if key not in self._times:
            if len(self._times) >= _RINGS_KEPT:
                self._times.clear()
            self._times[key] = ring_times(self.ring(peers), costs, joined)
        return self._times[key]


class _Collective:
    """One sum over one group of peers."""

    def __init__(self, run: Collectives, peers: tuple[Peer, ...], tag: Tag, deadline: float) -> None:
        self.peers, self.tag = peers, tag
        self._run, self._deadline = run, deadline
        self._place = {peer: r for r, peer in enumerate(peers)}
        self._members: dict[int, _Member] = {}
        self._inside = 0  # members that wait
        self._timer = run.loop.call_idle(deadline, self._late)
        self._traffic: RingTraffic | None = None
        self._sum: Tensor | None = None
        self._sent = np.zeros(0)

    def __str__(self) -> str:
        part = f" {self.tag.part}" if self.tag.part else ""
        missing = [peer for peer, r in self._place.items() if r not in self._members]
        return f"the collective {self.tag.kind!r}{part} of step {self.tag.step}, which {missing} did not join"

    def takes(self, peer: Peer, peers: Sequence[Peer]) -> bool:
        """May `peer` join, saying that the collective is over `peers`?"""
        r = self._place.get(peer)
        return r is not None and r not in self._members and self.peers == tuple(peers)

    def needs(self, peer: Peer) -> bool:
        """Must `peer` still do its part? A peer that has the sum has sent everything that the others wait for."""
        if peer not in self._place:
            return False
        member = self._members.get(self._place[peer])
        return (
            member is None or not member.done.done() or member.done.cancelled() or member.done.exception() is not None
        )

    def holds(self, peer: Peer) -> bool:
        """Is `peer` in, and waiting for the sum?"""
        r = self._place.get(peer)
        return r in self._members and not self._members[r].done.done()

    def join(self, peer: Peer, member: _Member) -> None:
        self._members[self._place[peer]] = member
        self._inside += 1
        if len(self._members) == len(self.peers):
            members = [self._members[r] for r in range(len(self.peers))]
            if not any(member.done.done() for member in members):  # else it can never end, and they will find out
                self._launch(members)

    def leave(self) -> None:
        """A member waits no longer, for whatever reason."""
        self._inside -= 1
        if self._inside == 0:
            self._timer.cancel()
            if self._traffic is not None:
                self._traffic.stop()
            self._traffic = self._sum = None  # they refer to each other: do not leave tensors to the garbage collector
            self._members.clear()
            self._run.forget(self)

    def fail(self, peer: Peer, error: Exception) -> None:
        """`peer`, if it is in, gets `error` instead of the sum."""
        member = self._members.get(self._place.get(peer, -1))
        if member is not None:
            member.fail(error)

    def _late(self) -> None:
        missing = next(peer for peer, r in self._place.items() if r not in self._members)
        why = f"did not join the collective {self.tag.kind!r} within {self._deadline:g} s"
        for member in self._members.values():
            member.fail(Late(missing, self.tag.step, why))

    def _launch(self, members: list[_Member]) -> None:
        """All have joined: the sum can be computed, and when each has it."""
        self._timer.cancel()
        first, n, now = members[0], len(members), self._run.loop.time()
        brought = first.brings()
        for r, member in enumerate(members):
            if member.brings() != brought:
                self._refuse(members, r)
                return
        self._sum = ring_sum([member.x for member in members]) if self._run.numeric else None
        costs = np.array(chunk_nbytes(first.x.numel(), n, first.nbytes), dtype=np.float64)
        self._sent = ring_bytes(costs)
        times, sent = self._run.times(self.peers, costs, np.array([member.joined for member in members]) - now)
        ring = self._run.ring(self.peers)
        self._traffic = RingTraffic(self._run.loop, self._run.post, self.peers, ring, costs, times, sent, self._arrive)

    def _refuse(self, members: list[_Member], r: int) -> None:
        """Peer r brings something else than the first."""
        (numel, dtype, nbytes), (numel_0, dtype_0, nbytes_0) = members[r].brings(), members[0].brings()
        is_, should = f"{numel} x {dtype} in {nbytes} bytes", f"{numel_0} x {dtype_0} in {nbytes_0} bytes"
        problem = f"{self.tag.kind}{self.tag.part}: brought {is_}, {self.peers[0]!r} {should}"
        for member in members:
            member.fail(BadMessage(self.peers[r], self.tag.step, problem))

    def _arrive(self, r: int) -> None:
        """Peer r has the result."""
        member, now = self._members[r], self._run.loop.time()
        address, nbytes = member.address, int(self._sent[r])
        address.sent_bytes += nbytes
        address.received_bytes += int(self._sent[r - 1])
        args = {"step": self.tag.step, "bytes": nbytes}
        address.trace.span(Span(address.peer, "send", self.tag.kind, member.joined, now, args))
        awake = address.sleep.awake(now)
        if awake > now:
            self._run.loop.at(awake, self._hand_over, member)
        else:
            self._hand_over(member)

    def _hand_over(self, member: _Member) -> None:
        if member.done.done():
            return
        if version(member.x) != member.version:
            kind, step = self.tag.kind, self.tag.step
            text = f"{member.address.peer!r} wrote to a tensor during the collective {kind!r} of step {step} over it"
            member.fail(Race(text))
            return
        if self._sum is not None:
            member.x.detach().copy_(self._sum.reshape(member.x.shape))
        member.done.set_result(None)
