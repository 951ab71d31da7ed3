"""The threads in which one peer computes: one per lane, made when it is first used.

Grad mode, the number of intra-op threads, the current device and the current CUDA stream are thread-local in torch, so
every lane sets its own. On a GPU a lane has a stream of its own, and a computation has ended when the device has ended
it; a mark is reached when the device has reached it. (No GPU has verified that part yet.)
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import nullcontext
from functools import partial
from time import monotonic
from typing import Any, TypeVar

import torch

from shoal.transport.lane import Lane
from shoal.world import Work
from shoal.worlds.pacing import LEAST_S, Pace
from shoal.worlds.seeds import seeded

T = TypeVar("T")

INLINE_BYTES = 256 * 1024
"""Computations without FLOPs that touch less run on the loop itself if their lane is idle: handing such a one to a
thread and back costs more than doing it (measured in docs/log.md)."""

OnSpan = Callable[[str, str, float, float], None]


class Stopped(RuntimeError):
    """Raised by a mark when the world has ended: the computation's results are wanted by nobody."""


class Reached:
    """The keys that a computation has reached, in order, each not before it is due. None in the `queue` is the end."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.queue: asyncio.Queue[tuple[Hashable] | None] = asyncio.Queue()
        self._loop = loop
        self._held: deque[Hashable] = deque()

    def put(self, key: Hashable, due: float) -> None:
        if not self._held and due <= monotonic():
            self.queue.put_nowait((key,))
            return
        self._held.append(key)
        self._loop.call_later(max(0.0, due - monotonic()), self._release)  # whichever timer it is, the oldest goes

    def close(self) -> None:
        while self._held:
            self._release()
        self.queue.put_nowait(None)

    def _release(self) -> None:
        if self._held:
            self.queue.put_nowait((self._held.popleft(),))


class Lanes:
    """Args:
    seed: of the job; together with `Work.seed` it seeds a computation.
    threads: intra-op threads of each lane.
    on_span: called on the loop with lane, label, start and stop (`time.monotonic`) of each computation.
    pace: stretches computations; None leaves them as fast as they are.
    """

    def __init__(
        self, device: torch.device, *, seed: int, threads: int, on_span: OnSpan, pace: Pace | None = None
    ) -> None:
        self._device, self._seed, self._threads, self._on_span = device, seed, threads, on_span
        self._pace = pace
        self._lanes: dict[str, Lane] = {}
        self._dice = threading.Lock()  # the default generators belong to the process: one seeded computation at a time
        self._stopped = False
        self._loop = asyncio.get_running_loop()

    async def run(self, fn: Callable[[], T], work: Work) -> T:
        """Run `fn` on its lane. Cancelling waits for the end of a computation that has begun."""
        if self._fits_the_loop(work):
            result, start, stop = self._compute(fn, work)
        else:
            result, start, stop = await self.lane(work.lane).job(partial(self._compute, fn, work)).result()
        self._on_span(work.lane, work.label, start, stop)
        return result

    async def reach(self, fn: Callable[[Callable[[Hashable], None]], Any], work: Work) -> AsyncIterator[Hashable]:
        """Run ``fn(mark)`` on its lane and yield what it marks, when it marks it."""
        marks = Reached(self._loop)
        job = self.lane(work.lane).job(partial(self._compute_marking, fn, work, marks))
        job.done.add_done_callback(lambda _: self._when_reached(None, marks.close))
        try:
            while (marked := await marks.queue.get()) is not None:
                yield marked[0]
            _, start, stop = job.done.result()
            self._on_span(work.lane, work.label, start, stop)
        finally:
            await job.withdraw()

    def lane(self, name: str) -> Lane:
        """The thread of this name; ``"to_host"`` and ``"to_device"`` are those of copies."""
        if name not in self._lanes:
            self._lanes[name] = Lane(f"{name} lane", self.prepare)
        return self._lanes[name]

    def prepare(self) -> None:
        """Settings of the calling thread."""
        torch.set_num_threads(self._threads)
        torch.set_grad_enabled(True)
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)
            torch.cuda.set_stream(torch.cuda.Stream(self._device))

    def close(self, seconds: float) -> None:
        """End all threads: computations end at their next mark, and are waited for `seconds` at most. Blocks."""
        self._stopped = True
        if self._pace is not None:
            self._pace.stop()
        for lane in self._lanes.values():
            lane.finish()
        until = monotonic() + seconds
        for lane in self._lanes.values():
            lane.join(max(0.0, until - monotonic()))

    def _fits_the_loop(self, work: Work) -> bool:
        tiny = work.flops == 0 and work.touched_bytes < INLINE_BYTES and not work.seed and self._device.type == "cpu"
        tiny = tiny and (self._pace is None or self._pace.seconds(work) < LEAST_S)
        return tiny and (work.lane not in self._lanes or self._lanes[work.lane].idle)

    def _compute(self, fn: Callable[[], T], work: Work) -> tuple[T, float, float]:
        start = monotonic()
        with self._dice if work.seed else nullcontext(), seeded(self._seed, work.seed, self._device):
            result = fn()
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()
        if self._pace is not None:
            return result, start, self._pace.hold(work.lane, self._pace.seconds(work), start)
        return result, start, monotonic()

    def _compute_marking(
        self, fn: Callable[[Callable[[Hashable], None]], T], work: Work, marks: Reached
    ) -> tuple[T, float, float]:
        start, share = monotonic(), 0.0
        room = self._pace.room(work.lane, self._pace.seconds(work)) if self._pace is not None else 0.0

        def mark(key: Hashable) -> None:
            nonlocal share
            share = max(share, work.marks.get(key, 0.0))  # as in the virtual world, at its share of the interval
            self._mark(marks, key, start + share * room)

        return self._compute(partial(fn, mark), work)

    def _mark(self, marks: Reached, key: Hashable, due: float) -> None:
        """In a computing thread: tell the loop that `key` is reached, or will be when the device comes to it, but not
        before `due`."""
        if self._stopped:
            raise Stopped("the world has ended")
        event = None
        if self._device.type == "cuda":
            event = torch.cuda.Event()
            event.record(torch.cuda.current_stream(self._device))
        self._loop.call_soon_threadsafe(self._when_reached, event, partial(marks.put, key, due))

    def _when_reached(self, event: torch.cuda.Event | None, then: Callable[[], None]) -> None:
        """On the loop: `then` at once, or on a GPU when all that was recorded before `event` is done; in order."""
        if self._device.type == "cuda":
            wait = self.lane("marks").submit(event.synchronize if event is not None else lambda: None)
            wait.add_done_callback(lambda _: then())
        else:
            then()
