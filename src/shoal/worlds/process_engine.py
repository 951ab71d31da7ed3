"""An engine's own collectives (Gloo, NCCL) in an order that all peers share.

An engine hangs, or aborts the process, if two peers issue collectives of one group in different orders or with
different sizes, and tasks reach theirs in an order that nobody fixes. So nobody issues before the order is agreed:

1. A peer that has come to a collective says so to the leader of the run (the first of all peers): its tag, its group,
   its dtype and number of elements.
2. When all of the group have said so, the leader compares them and tells the whole group to go.
3. Each peer issues in the order of the leader's words, one at a time, in one thread.

The leader's words form one sequence over all groups, and messages of the leader arrive in the order of sending, so any
two peers issue what they share in the same order. What is told to go has been reached by everybody, so nothing that is
issued waits for something that is not. It costs one small round trip per collective, and no knowledge of the plan.
Unequal sizes or dtypes never reach the engine: the leader names the peer that differs.

An engine's order of additions is its own: sums are not those of the ring to the bit.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from shoal.errors import BadMessage, Late, PeerLost, ShoalError
from shoal.transport import Frame
from shoal.transport.engines import Group, PrefixStore, Store, abandon, brief, gloo_group, keep, nccl_group
from shoal.transport.lane import Job, Lane
from shoal.world import Peer, Tag

Call = tuple[str, int, Any, tuple[Peer, ...]]
"""What names a collective: kind, step and part of its tag, and its group."""
Shape = tuple[str, int]
"""Dtype and number of elements."""

_STALL_SECONDS = 60.0
"""Gloo moves a vector in segments of at most a megabyte, and each must make its way in this time."""

_LAST_WORDS = 1.0  # seconds in which the loss of a peer, which is why the engine failed, may become known


class Engine:
    """Args:
    peers: all peers of the run, sorted; the first one leads.
    tell: sends a frame to a peer, after all that was told it before.
    deadline: seconds for one collective.
    prepare: settings of the thread that issues.
    """

    def __init__(
        self,
        me: Peer,
        peers: Sequence[Peer],
        *,
        store: Store,
        host: str,
        device: torch.device,
        deadline: float,
        tell: Callable[[Peer, Frame], Coroutine[Any, Any, None]],
        prepare: Callable[[], None],
    ) -> None:
        self._me, self._all, self._leader = me, tuple(peers), peers[0]
        self._store: Store | None = store
        self._host, self._device = host, device
        self._deadline, self._tell = deadline, tell
        self._loop = asyncio.get_running_loop()
        self._reached: dict[Call, dict[Peer, deque[Shape]]] = {}  # the leader's: who has said so, in order
        self._waiting: dict[Call, deque[tuple[Tensor, asyncio.Future[Job[None]]]]] = {}  # mine, not told to go yet
        self._groups: dict[tuple[Peer, ...], Group] = {}
        self._telling: set[asyncio.Task[None]] = set()
        self._lane = Lane("collectives", prepare)

    async def connect(self) -> None:
        """Connect the group of all peers, which most collectives are of; smaller groups when they are first used."""
        if len(self._all) > 1:
            await self._lane.submit(partial(self._group, self._all))

    async def all_reduce(self, x: Tensor, peers: Sequence[Peer], tag: Tag) -> None:
        """Sum `x` over `peers`, in place. Once begun it is not withdrawn, for the others' sake.

        Raises:
            BadMessage: a peer brought another size or dtype.
            Late: the others did not come to it before the deadline.
            ShoalError: the engine failed.
        """
        if len(peers) == 1:
            return
        call: Call = (tag.kind, tag.step, tag.part, tuple(peers))
        told: asyncio.Future[Job[None]] = self._loop.create_future()
        self._waiting.setdefault(call, deque()).append((x, told))
        shape = (str(x.dtype).removeprefix("torch."), x.numel())
        self._say([self._leader], Frame(Tag(tag.kind, tag.step, (tag.part, call[3], *shape)), purpose="ready"))
        try:
            async with asyncio.timeout(self._deadline):
                job = await asyncio.shield(told)
        except TimeoutError:
            others = ", ".join(peer for peer in peers if peer != self._me)
            why = f"did not all come to the sum {tag.kind!r} {tag.part} within {self._deadline:g} s"
            raise Late(others, tag.step, why) from None
        job.done.add_done_callback(lambda done: done.cancelled() or done.exception())  # seen, though nobody waits
        try:
            await asyncio.shield(job.done)
        except RuntimeError as error:
            await asyncio.sleep(_LAST_WORDS)
            raise ShoalError(f"the sum {tag.kind!r} of step {tag.step} failed in the engine: {brief(error)}") from None

    def take(self, source: Peer, frame: Frame) -> None:
        """A word about the order: ``ready`` to the leader, ``go`` from it."""
        part, group, *words = cast(tuple[Any, ...], frame.tag.part)
        call: Call = (frame.tag.kind, frame.tag.step, part, group)
        if frame.purpose == "ready":
            self._note(call, source, (words[0], words[1]))
        elif source == self._leader:
            self._go(call, *words)

    def close(self, seconds: float) -> None:
        """Let go of the engine; what is going on in it is broken off.

        Gloo does not always notice that. Then the thread that issues is left behind until Gloo's own time-out, and the
        groups until the process ends.
        """
        groups = list(self._groups.values())
        if not self._lane.idle:
            abandon(groups)
        self._lane.finish()
        if not self._lane.join(seconds):
            keep(groups)
        self._groups.clear()
        self._store = None
        for task in self._telling:
            task.cancel()

    def _note(self, call: Call, source: Peer, shape: Shape) -> None:
        """The leader's: `source` has come to `call`. When all of its group have, they go."""
        reached = self._reached.setdefault(call, {peer: deque() for peer in call[3]})
        reached[source].append(shape)
        if not all(reached.values()):
            return
        shapes = {peer: came.popleft() for peer, came in reached.items()}
        if not any(reached.values()):
            del self._reached[call]
        kind, step, part, group = call
        odd = next((peer for peer in group if shapes[peer] != shapes[group[0]]), "")
        brought = [f"{peer!r} has {shapes[peer][1]} elements of {shapes[peer][0]}" for peer in (group[0], odd) if odd]
        self._say(group, Frame(Tag(kind, step, (part, group, odd, ", ".join(brought))), purpose="go"))

    def _go(self, call: Call, odd: Peer, why: str) -> None:
        """All of the group have come to `call`: issue it next, unless what they brought does not fit."""
        waiting = self._waiting[call]
        x, told = waiting.popleft()
        if not waiting:
            del self._waiting[call]
        kind, step, part, group = call
        if not odd:
            told.set_result(self._lane.job(partial(self._reduce, x, group)))
        else:
            culprit = group[0] if odd == self._me else odd
            told.set_exception(BadMessage(culprit, step, f"{kind}{part}: cannot be summed, {why}"))

    def _say(self, to: Sequence[Peer], frame: Frame) -> None:
        """To others by a task each, which begin in the order in which they are made; to myself at once."""
        for peer in to:
            if peer != self._me:
                task = self._loop.create_task(self._whisper(peer, frame))
                self._telling.add(task)
                task.add_done_callback(self._telling.discard)
        if self._me in to:
            self.take(self._me, frame)

    async def _whisper(self, peer: Peer, frame: Frame) -> None:
        with suppress(PeerLost):  # the transport reports it itself
            await self._tell(peer, frame)

    # In the issuing thread.

    def _reduce(self, x: Tensor, group: tuple[Peer, ...]) -> None:
        if x.numel() == 0:
            return
        flat = x.detach().contiguous()
        self._group(group).allreduce([flat]).wait(timedelta(seconds=self._deadline))
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()
        if flat.data_ptr() != x.data_ptr():
            x.detach().copy_(flat)

    def _group(self, peers: tuple[Peer, ...]) -> Group:
        """The engine's group of `peers`, connected when it is first asked for."""
        if peers not in self._groups:
            if self._store is None:
                raise ShoalError("the world has ended")
            store, rank = PrefixStore("collective/" + "/".join(peers), self._store), peers.index(self._me)
            if self._device.type == "cuda":
                made = nccl_group(store, rank=rank, size=len(peers), deadline=self._deadline)
            else:
                seconds = min(self._deadline, _STALL_SECONDS)
                made = gloo_group(store, rank=rank, size=len(peers), host=self._host, deadline=seconds)
            self._groups[peers] = made
        return self._groups[peers]
