"""An asyncio event loop on a virtual clock.

Nothing waits: when no callback is ready, the clock jumps to the next moment at which something happens. All timers live
in one agenda here and asyncio's own timer queue stays empty, so its clock resolution (which drops or spins on timers
closer than it) never matters, however large the clock. Things that happen at the same moment happen in the order in
which they were asked for or, given a seed, in a random order that is the same for the same seed: a protocol must not
depend on it.

`VirtualLoop.at` is the cheap way for a world's own events: no handle, no context, and no way to cancel. *Idle* events
(deadlines) do not keep the world going: if nothing else is to come, everybody waits for something that cannot happen.
"""

from __future__ import annotations

import asyncio
import heapq
import math
from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any, Protocol

from shoal.errors import Deadlock

_PURGE_ABOVE = 256  # cancelled timers in the agenda, if they are also most of it


class Source(Protocol):
    """Something with events of its own, such as a network."""

    def next_time(self) -> float:
        """When something will happen next, or infinity. Asked whenever the clock is about to move."""
        ...

    def happen(self, now: float) -> None:
        """It is that time."""
        ...


class _Nothing:
    def next_time(self) -> float:
        return math.inf

    def happen(self, now: float) -> None:
        raise AssertionError("never")


class _Selector:
    """What asyncio calls when it has nothing to do."""

    def __init__(self, advance: Callable[[], None]) -> None:
        self._advance = advance

    def select(self, timeout: float | None) -> list[Any]:
        if timeout != 0:
            self._advance()
        return []

    def close(self) -> None:
        pass


class _IdleHandle(asyncio.TimerHandle):
    """A timer that does not keep the world going."""

    __slots__ = ()


class VirtualLoop(asyncio.BaseEventLoop):
    """Args:
    tie_seed: shuffles what happens at the same moment; None keeps the order of asking.
    """

    _ready: deque[asyncio.Handle]  # asyncio's own

    def __init__(self, *, tie_seed: int | None = None) -> None:
        super().__init__()
        self._selector = _Selector(self._advance)
        self.source: Source = _Nothing()
        """A network or the like; comes before the agenda at equal times."""
        self._tie: Callable[[], float] = float if tie_seed is None else Random(tie_seed).random
        self._virtual_now = 0.0
        self._count = 0
        self._idle = 0
        self._cancelled = 0
        self._agenda: list[tuple[float, float, int, Callable[..., Any] | None, Any]] = []
        self.events = 0
        """Moments handled so far: agenda entries and source events."""
        self.on_stuck: Callable[[], None] | None = None
        """Called when nothing can ever happen again; must make a callback ready, or `Deadlock` ends the loop."""

    def time(self) -> float:
        return self._virtual_now

    def at(self, when: float, callback: Callable[[Any], Any], argument: Any) -> None:
        """Call ``callback(argument)`` at time `when` (now, if that has passed) from outside any task."""
        self._count += 1
        heapq.heappush(self._agenda, (max(when, self._virtual_now), self._tie(), self._count, callback, argument))

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Any = None) -> asyncio.Handle:
        """Without the checks of asyncio's own, which take longer than the rest."""
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._virtual_now + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        return self._add(asyncio.TimerHandle(when, callback, args, self, context))

    def call_idle(self, delay: float, callback: Callable[..., object], *args: Any) -> asyncio.TimerHandle:
        """Like `call_later`, for deadlines: it does not count as something that is still to come."""
        self._idle += 1
        return self._add(_IdleHandle(self._virtual_now + delay, callback, args, self))

    def _add(self, timer: asyncio.TimerHandle) -> asyncio.TimerHandle:
        timer._scheduled = True  # so that its cancellation is reported to `_timer_handle_cancelled`
        self._count += 1
        heapq.heappush(self._agenda, (max(timer.when(), self._virtual_now), self._tie(), self._count, None, timer))
        return timer

    def _advance(self) -> None:
        """Jump to the next moment and make happen what happens at it."""
        agenda = self._agenda
        when = self.source.next_time()
        if when == math.inf and len(agenda) - self._idle - self._cancelled <= 0:
            self._stuck()
            return
        if agenda and agenda[0][0] < when:
            when = self._virtual_now = agenda[0][0]
            while agenda and agenda[0][0] == when:
                _, _, _, callback, argument = heapq.heappop(agenda)
                self.events += 1
                if callback is not None:
                    callback(argument)
                elif argument.cancelled():
                    self._cancelled -= 1
                else:
                    argument._scheduled = False
                    self._idle -= isinstance(argument, _IdleHandle)
                    self._ready.append(argument)
        else:
            self._virtual_now = when
            self.events += 1
            self.source.happen(when)

    def _stuck(self) -> None:
        if self.on_stuck is not None:
            self.on_stuck()
        if not self._ready:
            raise Deadlock(f"at {self._virtual_now:g} s nothing is ready and nothing is to come")

    # What asyncio's base class asks of a loop.

    def _process_events(self, event_list: list[Any]) -> None:
        pass

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """`handle` is about to be marked as cancelled; its entry stays until its time or the next purge."""
        if not handle._scheduled:
            return
        self._cancelled += 1
        self._idle -= isinstance(handle, _IdleHandle)
        if self._cancelled > _PURGE_ABOVE and 2 * self._cancelled > len(self._agenda):
            live = [e for e in self._agenda if e[3] is not None or not (e[4].cancelled() or e[4] is handle)]
            self._agenda[:] = live
            heapq.heapify(self._agenda)
            self._cancelled = 0

    def _write_to_self(self) -> None:
        """`call_soon_threadsafe` from another thread: there is nothing to wake, but also nobody who may call it."""
        raise RuntimeError("a virtual world has no threads; run computations with World.run")
