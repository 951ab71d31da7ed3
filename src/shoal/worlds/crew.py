"""The tasks of one worker: they live and die together.

The first task that fails ends the whole crew at once, so no failure can stay unnoticed; otherwise the crew ends when
its last task has.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Crew:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self.over: asyncio.Future[None] = loop.create_future()
        """Done when all tasks are, or failed with the first failure."""

    def spawn(self, coro: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        task = self._loop.create_task(coro, name=name)
        self._tasks[task] = None
        task.add_done_callback(self._ended)
        return task

    def stop(self, error: Exception) -> None:
        """End the crew with `error`, unless it is over."""
        if not self.over.done():
            self.over.set_exception(error)

    def names(self) -> list[str]:
        """Names of the tasks that are not done."""
        return [task.get_name() for task in self._tasks]

    async def wind_up(self) -> None:
        """Cancel what is left and wait until it has ended."""
        if self.over.done() and not self.over.cancelled():
            self.over.exception()  # seen, even if whoever waited for it was cancelled at this moment
        while self._tasks:
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(list(self._tasks))
            await asyncio.sleep(0)  # lets `_ended` see them

    def _ended(self, task: asyncio.Task[Any]) -> None:
        del self._tasks[task]
        error = None if task.cancelled() else task.exception()
        if self.over.done():
            return
        if error is not None:
            self.over.set_exception(error)
        elif not self._tasks:
            self.over.set_result(None)
