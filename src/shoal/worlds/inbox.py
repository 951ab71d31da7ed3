"""Messages that have arrived at one peer and were not taken yet, and who waits for which.

Both worlds put messages in and take them out here, so "first in, first out per (source, tag)", "what had arrived before
a peer was lost can still be taken" and "no wait without a deadline" mean the same in both. A message for which someone
already waits is handed over directly. Not thread-safe: everything happens on the loop. An inbox holds whatever is put
in; bounding that (credit, `discard`) is the caller's part.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any
from weakref import ref

from shoal.errors import Late, PeerLost
from shoal.world import Message, Peer, Tag

Match = Callable[[Message], bool]
CallLater = Callable[[float, Callable[[], object]], object]


class _Wait:
    """One pending take. `tag` is None for a take of any message of `kind`."""

    __slots__ = ("__weakref__", "future", "kind", "match", "seconds", "source", "tag", "timer")

    def __init__(
        self,
        future: asyncio.Future[Message],
        seconds: float,
        kind: str,
        source: Peer | None = None,
        tag: Tag | None = None,
        match: Match | None = None,
    ) -> None:
        self.future, self.seconds, self.kind = future, seconds, kind
        self.source, self.tag, self.match = source, tag, match
        self.timer: asyncio.TimerHandle | None = None

    def __str__(self) -> str:
        if self.tag is None:
            return f"any {self.kind!r}"
        part = f" {self.tag.part}" if self.tag.part else ""
        return f"{self.kind!r}{part} of step {self.tag.step} from {self.source!r}"


class Inbox:
    """Args:
    others: how many peers may send here; when all of them are lost, takes of any message fail too.
    deadline: seconds that a take without a deadline of its own waits.
    call_later: arms the timer of the default deadlines; `loop.call_later` unless a virtual world brings its own.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        others: int,
        *,
        deadline: float,
        call_later: CallLater | None = None,
    ) -> None:
        self._loop, self._deadline = loop, deadline
        self._call_later: CallLater = call_later or loop.call_later
        self._others = others
        self._lost: dict[Peer, str] = {}
        self._arrivals = 0
        self._kinds: dict[str, dict[int, Message]] = {}  # kind → arrival number → message, oldest first
        self._queues: dict[tuple[Peer, Tag], list[int]] = {}  # arrival numbers, oldest first; lists, as most hold one
        self._waits: dict[tuple[Peer, Tag], list[_Wait]] = {}
        self._any_waits: dict[str, list[_Wait]] = {}
        # Equal deadlines expire in the order in which they were set. Weak: a wait that is over keeps no message alive.
        self._default = deque[tuple[float, ref[_Wait]]]()
        self._default_limit = 64
        self._armed = False

    def put(self, message: Message) -> None:
        """A message has arrived. It goes to the longest wait for exactly it, else to the longest that it fits."""
        key = message.source, message.tag
        waits = self._waits.get(key)
        if waits is not None:
            wait = waits.pop(0)
            if not waits:
                del self._waits[key]
            self._finish(wait, message)
            return
        for wait in list(self._any_waits.get(message.tag.kind, ())):
            try:
                fits = wait.match is None or wait.match(message)
            except Exception as error:  # a mistake in the protocol is for the one who waits, not for who delivers
                self._forget(wait)
                self._finish(wait, error)
                continue
            if fits:
                self._forget(wait)
                self._finish(wait, message)
                return
        self._arrivals += 1
        self._kinds.setdefault(message.tag.kind, {})[self._arrivals] = message
        self._queues.setdefault(key, []).append(self._arrivals)

    async def take(self, tag: Tag, source: Peer, within: float | None = None) -> Message:
        """The next message with this tag from `source`.

        Raises:
            PeerLost: `source` is gone and no such message had arrived.
            Late: the deadline passed.
        """
        queue = self._queues.get((source, tag))
        if queue is not None:
            return self._remove(source, tag, queue.pop(0))
        if source in self._lost:
            raise PeerLost(source, tag.step, self._lost[source])
        seconds = self._deadline if within is None else within
        wait = _Wait(self._loop.create_future(), seconds, tag.kind, source, tag)
        self._waits.setdefault((source, tag), []).append(wait)
        return await self._wait(wait, within)

    async def take_any(self, kind: str, match: Match | None = None, within: float | None = None) -> Message:
        """The message of this kind that arrived first (among those for which `match` holds).

        Raises:
            PeerLost: all other peers are gone and no such message had arrived.
            Late: the deadline passed; names no peer.
        """
        for number, message in self._kinds.get(kind, {}).items():
            if match is None or match(message):
                self._queues[message.source, message.tag].remove(number)
                return self._remove(message.source, message.tag, number)
        if self._lost and len(self._lost) >= self._others:
            peer, why = next(reversed(self._lost.items()))
            raise PeerLost(peer, 0, why)
        wait = _Wait(self._loop.create_future(), self._deadline if within is None else within, kind, match=match)
        self._any_waits.setdefault(kind, []).append(wait)
        return await self._wait(wait, within)

    def look(self, kind: str) -> list[Message]:
        """Arrived and untaken messages of this kind, in order of arrival."""
        return list(self._kinds.get(kind, {}).values())

    def discard(self, kind: str, before_step: int) -> int:
        """Drop arrived messages of this kind with a step below `before_step`; returns how many."""
        old = [(n, m) for n, m in self._kinds.get(kind, {}).items() if m.tag.step < before_step]
        for number, message in old:
            self._queues[message.source, message.tag].remove(number)
            self._remove(message.source, message.tag, number)
        return len(old)

    def lose(self, peer: Peer, why: str) -> None:
        """`peer` is gone: fail the waits for it. Its messages that have arrived can still be taken."""
        if peer in self._lost:
            return
        self._lost[peer] = why
        for key in [key for key in self._waits if key[0] == peer]:
            for wait in self._waits.pop(key):
                self._finish(wait, PeerLost(peer, key[1].step, why))
        if len(self._lost) >= self._others:
            for waits in self._any_waits.values():
                for wait in waits:
                    self._finish(wait, PeerLost(peer, 0, why))
            self._any_waits.clear()

    def lost(self, peer: Peer) -> str | None:
        """Why `peer` is gone, or None while it lives."""
        return self._lost.get(peer)

    def first_lost(self, peers: Iterable[Peer]) -> Peer | None:
        """The first of `peers` that is gone, or None if all live."""
        return next((peer for peer in peers if peer in self._lost), None) if self._lost else None

    def waiting(self) -> list[str]:
        """What is being waited for, in words."""
        pending = [wait for waits in (*self._waits.values(), *self._any_waits.values()) for wait in waits]
        return [str(wait) for wait in pending]

    def __len__(self) -> int:
        return sum(len(messages) for messages in self._kinds.values())

    # ------------------------------------------------------------------------------------------------- waits

    async def _wait(self, wait: _Wait, within: float | None) -> Message:
        if within is None:
            self._expire_by_default(wait)
        else:
            wait.timer = self._loop.call_later(within, self._expire, wait)
        try:
            return await wait.future
        except asyncio.CancelledError:
            if wait.future.done() and not wait.future.cancelled() and wait.future.exception() is None:
                self._put_back(wait.future.result())  # handed over and cancelled at the same instant
            else:
                self._forget(wait)
            raise
        finally:
            if wait.timer is not None:
                wait.timer.cancel()

    def _finish(self, wait: _Wait, outcome: Message | Exception) -> None:
        if wait.future.done():
            if isinstance(outcome, Message):
                self.put(outcome)
        elif isinstance(outcome, Message):
            wait.future.set_result(outcome)
        else:
            wait.future.set_exception(outcome)

    def _forget(self, wait: _Wait) -> None:
        """`wait` no longer waits; empty queues go with it."""
        if wait.tag is None:
            _drop(self._any_waits, wait.kind, wait)
        elif wait.source is not None:
            _drop(self._waits, (wait.source, wait.tag), wait)

    def _expire(self, wait: _Wait) -> None:
        if wait.future.done():
            return
        self._forget(wait)
        step = wait.tag.step if wait.tag else 0
        self._finish(wait, Late(wait.source or "anyone", step, f"no message {wait} within {wait.seconds:g} s"))

    def _expire_by_default(self, wait: _Wait) -> None:
        """One timer serves all default deadlines, so that a take costs no timer of its own."""
        if len(self._default) >= self._default_limit:
            self._default = deque(entry for entry in self._default if entry[1]() is not None)
            self._default_limit = 2 * len(self._default) + 64
        self._default.append((self._loop.time() + self._deadline, ref(wait)))
        if not self._armed:
            self._armed = True
            self._call_later(self._deadline, self._sweep)

    def _sweep(self) -> None:
        while self._default and (self._default[0][1]() is None or self._default[0][0] <= self._loop.time()):
            wait = self._default.popleft()[1]()
            if wait is not None:
                self._expire(wait)
        self._armed = bool(self._default)
        if self._armed:
            self._call_later(self._default[0][0] - self._loop.time(), self._sweep)

    # ---------------------------------------------------------------------------------------------- messages

    def _remove(self, source: Peer, tag: Tag, number: int) -> Message:
        """Take message `number`, already off its queue, out of its kind."""
        if not self._queues[source, tag]:
            del self._queues[source, tag]
        messages = self._kinds[tag.kind]
        message = messages.pop(number)
        if not messages:
            del self._kinds[tag.kind]
        return message

    def _put_back(self, message: Message) -> None:
        """A message was handed over to a wait that was cancelled at the same instant: it is first in line again."""
        key, kind = (message.source, message.tag), message.tag.kind
        if key in self._waits or kind in self._any_waits:
            self.put(message)
            return
        self._arrivals += 1
        self._kinds[kind] = {self._arrivals: message, **self._kinds.get(kind, {})}
        self._queues.setdefault(key, []).insert(0, self._arrivals)


def _drop(waits: dict[Any, list[_Wait]], key: Any, wait: _Wait) -> None:
    queue = waits.get(key)
    if queue is not None and wait in queue:
        queue.remove(wait)
        if not queue:
            del waits[key]
