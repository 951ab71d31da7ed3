"""Computations of one virtual peer: each lane does one after another, in order; lanes overlap.

A computation takes the time that the device's model says. Its function really runs (in numeric mode) at one point of
that interval: at its start, or at a seeded random point, which is how races are found. Its result is there at the end;
what it marked is handed out in between.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import torch

from shoal.trace import Span, Trace
from shoal.world import Peer, Work
from shoal.worlds.clock import VirtualLoop
from shoal.worlds.faults import Sleep
from shoal.worlds.seeds import seeded


class Computation:
    """One call of `World.run`, or of `World.reach` if it has `marks`. `call` is None where nothing is executed."""

    __slots__ = ("call", "due", "error", "future", "marked", "marks", "result", "start", "stop", "work")

    def __init__(
        self, call: Callable[[], Any] | None, work: Work, future: asyncio.Future[Any], result: Any = None
    ) -> None:
        self.call, self.work, self.future, self.result = call, work, future, result
        self.error: Exception | None = None
        self.start = self.stop = 0.0
        self.marks: Marks | None = None
        self.marked: list[Hashable] = []  # by the function, in order
        self.due: deque[Hashable] | None = None  # marked, but their time has not come


class Lanes:
    """Args:
    seconds: how long a computation takes.
    fuzz: draws the point at which a function runs, as a share of the time there is; None: always the start.
    """

    def __init__(
        self,
        loop: VirtualLoop,
        trace: Trace,
        peer: Peer,
        *,
        seconds: Callable[[Work], float],
        sleep: Sleep,
        seed: int,
        device: torch.device,
        fuzz: Callable[[], float] | None,
    ) -> None:
        self._loop, self._trace, self._peer = loop, trace, peer
        self._seconds, self._sleep, self._seed, self._device, self._fuzz = seconds, sleep, seed, device, fuzz
        self._queues: dict[str, deque[Computation]] = {}  # the first of a lane is the one that is running
        self._closed = False

    def add(self, computation: Computation) -> None:
        """Start `computation` when its lane has done everything that was added before."""
        queue = self._queues.get(computation.work.lane)
        if queue is None:
            queue = self._queues[computation.work.lane] = deque()
        queue.append(computation)
        if len(queue) == 1:
            self._start(computation)

    def close(self) -> None:
        """The peer is gone: nothing runs any more."""
        self._closed = True

    def _start(self, computation: Computation) -> None:
        start = computation.start = self._sleep.awake(self._loop.time())
        seconds = self._seconds(computation.work)
        computation.stop = self._sleep.after(start, seconds)
        if computation.call is None:
            if computation.marks is not None:
                shares = computation.work.marks
                self._release(computation, sorted(shares, key=shares.__getitem__))
        else:  # not at once: what was started at the same moment, such as the sending of a tensor, comes first
            room = seconds if computation.marks is None else seconds * min(computation.work.marks.values(), default=1.0)
            share = 0.0 if self._fuzz is None else self._fuzz()
            self._loop.at(self._sleep.after(start, share * room), self._execute, computation)
        self._loop.at(computation.stop, self._finish, computation)

    def _execute(self, computation: Computation) -> None:
        call, computation.call = computation.call, None
        if call is None or self._closed:
            return
        try:
            with seeded(self._seed, computation.work.seed, self._device):
                computation.result = call()
        except Exception as error:
            computation.error = error
        if computation.marks is not None:
            self._release(computation, computation.marked)

    def _finish(self, computation: Computation) -> None:
        if self._closed:
            return
        self._execute(computation)  # if its random point fell on the very end
        while computation.due:
            self._mark(computation)
        computation.marks = None  # they refer to each other
        work = computation.work
        self._trace.span(Span(self._peer, work.lane, work.label, computation.start, self._loop.time()))
        queue = self._queues[work.lane]
        queue.popleft()
        if not computation.future.done():
            if computation.error is None:
                computation.future.set_result(computation.result)
            else:
                computation.future.set_exception(computation.error)
        if queue:
            self._start(queue[0])

    # ------------------------------------------------------------------------------------------------- marks

    def _release(self, computation: Computation, keys: Sequence[Hashable]) -> None:
        """Hand out `keys` in this order, each at its time."""
        start, stop = computation.start, computation.stop
        computation.due = deque(keys)
        for share in release_shares(keys, computation.work.marks):
            self._loop.at(start + share * (stop - start), self._mark, computation)

    def _mark(self, computation: Computation) -> None:
        """The next mark's time has come."""
        if computation.due and computation.marks is not None and not self._closed:
            computation.marks.put(computation.due.popleft())


def release_shares(keys: Sequence[Hashable], shares: Mapping[Hashable, float]) -> list[float]:
    """When keys that were marked in this order are handed out, as shares of the interval. None overtakes another.

    A key without a share comes with the next that has one, or at the end.
    """
    highest, out = 0.0, []
    for key in keys:
        highest = max(highest, shares.get(key, 0.0))
        out.append(highest)
    known = 1.0
    for n in reversed(range(len(keys))):
        known = out[n] = out[n] if keys[n] in shares else known
    return out


class Marks:
    """The keys that a computation reaches, as `World.reach` returns them. It starts when the first is asked for."""

    __slots__ = ("_computation", "_keys", "_lanes", "_started", "_waiter")

    def __init__(self, lanes: Lanes, computation: Computation) -> None:
        self._lanes, self._computation = lanes, computation
        self._started = False
        self._keys: deque[Hashable] = deque()
        self._waiter: asyncio.Future[None] | None = None
        computation.marks = self

    def put(self, key: Hashable) -> None:
        self._keys.append(key)
        self._wake()

    def __aiter__(self) -> Marks:
        return self

    async def __anext__(self) -> Hashable:
        future = self._computation.future
        if not self._started:
            self._started = True
            future.add_done_callback(self._wake)
            self._lanes.add(self._computation)
        while not self._keys:
            if future.done():
                future.result()  # raises what the function raised
                raise StopAsyncIteration
            self._waiter = future.get_loop().create_future()
            await self._waiter
        return self._keys.popleft()

    def _wake(self, _: object = None) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
