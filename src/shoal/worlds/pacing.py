"""Computations stretched to what another device would take, so that unequal devices are honest on equal cores.

A computation of FLOPs and bytes takes what the cluster file's device would take (`Device.seconds`, as in the virtual
world); what the real one took is subtracted. Where the real one was slower, the rest of the lane's computations are
shortened until the time is paid back; what was owed and when it hurt is counted, for then the figures of time are not
those of the device.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic

from shoal.world import Work

LEAST_S = 50e-6
"""Shorter computations are not stretched: sleeping would take longer than they should."""


@dataclass(slots=True)
class PaceCount:
    """Seconds of all stretched computations: what they should take, and by how much the real ones took longer."""

    asked_s: float = 0.0
    debt_s: float = 0.0


class Pace:
    """The pace of one peer's lanes.

    Args:
        seconds: how long the device would take.
    """

    def __init__(self, seconds: Callable[[Work], float]) -> None:
        self._seconds = seconds
        self._owed: dict[str, float] = {}  # by lane, seconds
        self._stopped = threading.Event()
        self.count = PaceCount()

    def seconds(self, work: Work) -> float:
        """What `work` should take; 0 where that is too short to care."""
        seconds = self._seconds(work)
        return seconds if seconds >= LEAST_S else 0.0

    def room(self, lane: str, seconds: float) -> float:
        """How long a computation of `seconds` may take on `lane`, what the lane owes subtracted."""
        return max(0.0, seconds - self._owed.get(lane, 0.0))

    def hold(self, lane: str, seconds: float, start: float) -> float:
        """In the lane's thread, after the real computation that began at `start`: wait for its end; returns that."""
        ended = monotonic()
        self.count.asked_s += seconds
        self.count.debt_s += max(0.0, ended - start - seconds)
        due = start + self.room(lane, seconds)
        if ended < due:
            self._stopped.wait(due - ended)
            ended = monotonic()
        self._owed[lane] = ended - start - seconds + self._owed.get(lane, 0.0)
        return ended

    def stop(self) -> None:
        """Let nobody wait any more: the world has ended."""
        self._stopped.set()
