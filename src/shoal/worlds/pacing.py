"""Computations stretched to what another device would take, so that unequal devices are honest on equal cores.

A computation of FLOPs and bytes takes what the cluster file's device would take (`Device.seconds`, as in the virtual
world); what the real one took is subtracted. Where the real one was slower, the rest of the lane's computations are
shortened until the time is paid back; what was owed and when it hurt is counted, for then the figures of time are not
those of the device.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from time import monotonic

from shoal.world import Work

LEAST_S = 50e-6
"""Nobody sleeps for less: it would take longer than it should. What is left over is owed to the next computation."""


@dataclass(slots=True)
class PaceCount:
    """Seconds of all computations: what they should take, and by how much the real ones took longer."""

    asked_s: float = 0.0
    debt_s: float = 0.0


class Pace:
    """The pace of one peer's lanes.

    Args:
        seconds: how long the device would take.
    """

    def __init__(self, seconds: Callable[[Work], float]) -> None:
        self.seconds = seconds
        self._owed: dict[str, float] = {}  # by lane, seconds
        self._stopped = threading.Event()
        self.count = self.of_steps = PaceCount()

    def room(self, lane: str, seconds: float) -> float:
        """How long a computation of `seconds` may take on `lane`, what the lane owes subtracted."""
        return max(0.0, seconds - self._owed.get(lane, 0.0))

    def hold(self, lane: str, seconds: float, start: float) -> float:
        """The real computation began at `start` and has ended: wait in its thread until it is due; returns its end."""
        ended = monotonic()
        self.count.asked_s += seconds
        self.count.debt_s += max(0.0, ended - start - seconds)
        due = start + self.room(lane, seconds)
        if due - ended >= LEAST_S:
            self._stopped.wait(due - ended)
            ended = monotonic()
        self._owed[lane] = ended - start - seconds + self._owed.get(lane, 0.0)
        return ended

    def forgive(self) -> None:
        """Forget what was owed and counted: the first step loads code and fills caches, as no other does."""
        self._owed.clear()
        self.count = PaceCount()

    def note(self) -> None:
        """A step has ended: what was counted until now belongs to steps, and not to what comes after the last one."""
        self.of_steps = replace(self.count)

    def stop(self) -> None:
        """Let nobody wait any more: the world has ended."""
        self._stopped.set()
