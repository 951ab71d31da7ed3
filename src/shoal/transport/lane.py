"""A thread that runs functions one after another for an event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Job(Generic[T]):
    """One function and the future of its result. Whoever takes the claim first, the thread or a withdrawal, has it."""

    __slots__ = ("claim", "done", "fn")

    def __init__(self, fn: Callable[[], T], done: asyncio.Future[T]) -> None:
        self.fn, self.done, self.claim = fn, done, threading.Lock()

    async def result(self) -> T:
        """Wait for the result. If this is cancelled, `withdraw`."""
        try:
            return await asyncio.shield(self.done)
        except asyncio.CancelledError:
            await self.withdraw()
            raise

    async def withdraw(self) -> None:
        """Take the function back, or wait for its end if it has begun."""
        if self.done.done():
            return
        if self.claim.acquire(blocking=False):
            self.done.cancel()
        else:
            await asyncio.wait([self.done])


class Lane:
    """One daemon thread with a queue. Python cannot stop a thread: one that is stuck in a foreign call at the end is
    left behind as a daemon, so that it can delay nobody's exit.

    Args:
        prepare: called first, in the thread (thread-local settings of an engine). If it fails, so does every job.
    """

    def __init__(self, name: str, prepare: Callable[[], Any] = lambda: None) -> None:
        self._loop = asyncio.get_running_loop()
        self._jobs: SimpleQueue[Job[Any] | None] = SimpleQueue()
        self._open: set[Job[Any]] = set()
        self._prepare = prepare
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    @property
    def idle(self) -> bool:
        """Nothing runs here and nothing waits."""
        return not self._open

    def job(self, fn: Callable[[], T]) -> Job[T]:
        """Run `fn` after all that was handed in before."""
        job = Job(fn, self._loop.create_future())
        self._open.add(job)
        self._jobs.put(job)
        return job

    def submit(self, fn: Callable[[], T]) -> asyncio.Future[T]:
        """`job` for those who do not care about its end if they are cancelled."""
        return self.job(fn).done

    def finish(self) -> None:
        """End the thread after the function that is running. All open jobs are cancelled; nobody waits any more."""
        for job in self._open:
            job.claim.acquire(blocking=False)
            job.done.cancel()
        self._jobs.put(None)

    def join(self, seconds: float) -> bool:
        """Wait for the end of the thread, after `finish`; false if it did not come. Blocks the loop."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _work(self) -> None:
        unfit = None
        try:
            self._prepare()
        except Exception as raised:
            unfit = raised
        while (job := self._jobs.get()) is not None:
            result, error = None, unfit
            if job.claim.acquire(blocking=False) and not job.done.cancelled() and error is None:
                try:
                    result = job.fn()
                except BaseException as raised:
                    error = raised
            with suppress(RuntimeError):  # the loop has closed: nobody waits any more
                self._loop.call_soon_threadsafe(self._settle, job, result, error)
            del job, result, error  # keep nothing alive while waiting for the next job

    def _settle(self, job: Job[Any], result: Any, error: BaseException | None) -> None:
        self._open.discard(job)
        if job.done.done():
            return
        if error is None:
            job.done.set_result(result)
        elif isinstance(error, StopIteration):  # a future refuses it
            job.done.set_exception(RuntimeError(f"{error!r} raised in a computation"))
        else:
            job.done.set_exception(error)
