"""Frames that wait for one connection: the most urgent first, one on its way at a time."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Generic, TypeVar

from shoal.errors import PeerLost
from shoal.world import Peer

P = TypeVar("P")  # what a transport writes: the packed parts of a frame


class _Entry(Generic[P]):
    """One frame. `done` becomes None when it has left, or the reason why it never will."""

    __slots__ = ("done", "parts", "started", "withdrawn")

    def __init__(self, parts: P, started: bool) -> None:
        self.parts, self.started, self.withdrawn = parts, started, False
        self.done: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()


class Outbox(Generic[P]):
    """A priority queue before one writer.

    Args:
        write: puts the parts of one frame on the wire; an exception of it ends the connection.
        on_broken: called with the reason when `write` failed.
    """

    def __init__(self, peer: Peer, write: Callable[[P], Awaitable[None]], on_broken: Callable[[str], None]) -> None:
        self._peer, self._write, self._on_broken = peer, write, on_broken
        self._heap: list[tuple[bool, int, int, _Entry[P]]] = []
        self._order = count()
        self._wake, self._idle = asyncio.Event(), asyncio.Event()
        self._idle.set()
        self._current: _Entry[P] | None = None
        self._ended: str | None = None
        self._task = asyncio.get_running_loop().create_task(self._run(), name=f"send to {peer}")

    @property
    def idle(self) -> bool:
        """The connection is up, nothing waits and nothing is on its way."""
        return self._ended is None and self._idle.is_set()

    async def send(self, parts: P, *, step: int, priority: int = 0, begun: bool = False) -> None:
        """Returns when the parts are on the wire. See `Transport.send` for what a cancellation does.

        Args:
            step: for the error's text.
            begun: a first piece has left already, so the rest goes before everything else and is never withdrawn.

        Raises:
            PeerLost: the connection ended before.
        """
        if self._ended is not None:
            raise PeerLost(self._peer, step, self._ended)
        entry = _Entry(parts, begun)
        heapq.heappush(self._heap, (not begun, -priority, next(self._order), entry))
        self._idle.clear()
        self._wake.set()
        try:
            why = await asyncio.shield(entry.done)
        except asyncio.CancelledError:
            if entry.started:
                await asyncio.wait([entry.done])  # its tensors are lent until it has left
            entry.withdrawn = True
            raise
        if why is not None:
            raise PeerLost(self._peer, step, why)

    async def flush(self) -> None:
        """Returns when nothing waits any more, or the connection has ended."""
        await self._idle.wait()

    def end(self, why: str) -> None:
        """The connection is gone: all that waits fails with PeerLost, as does all that is sent from now on."""
        if self._ended is not None:
            return
        self._ended = why
        self._task.cancel()
        for entry in [self._current, *(entry for *_, entry in self._heap)]:
            if entry is not None and not entry.done.done():
                entry.done.set_result(why)
        self._heap.clear()
        self._idle.set()

    async def ended(self) -> None:
        """Returns when the writer has stopped, after `end`."""
        await asyncio.wait([self._task])

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            while self._heap:
                *_, entry = heapq.heappop(self._heap)
                if entry.withdrawn:
                    continue
                entry.started, self._current = True, entry
                try:
                    await self._write(entry.parts)
                except Exception as error:
                    self._on_broken(str(error) or type(error).__name__)
                    return
                self._current = None
                if not entry.done.done():
                    entry.done.set_result(None)
            self._wake.clear()
            self._idle.set()
