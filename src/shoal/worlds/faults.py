"""What can go wrong in a virtual world: planned faults, and computations that do not take as long as predicted.

Everything is drawn from seeds of its own, apart from the job's, so a fault changes no dropout mask.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Literal

from shoal.worlds.seeds import derive

DETECTION_S = 0.02
"""Seconds until the others notice that a peer's connection has closed; measured for a killed process on one machine."""


@dataclass(frozen=True, slots=True)
class Crash:
    """`peer` dies without a word: at `at` seconds, or as soon as it reports or sends something of step `step`."""

    peer: str
    at: float | None = None
    step: int | None = None

    def __post_init__(self) -> None:
        if (self.at is None) == (self.step is None):
            raise ValueError(f"Crash({self.peer!r}) needs either at=SECONDS or step=STEP")


@dataclass(frozen=True, slots=True)
class Freeze:
    """`peer` does nothing from `at` for `seconds`, then goes on. What has left it still arrives."""

    peer: str
    at: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Delay:
    """Every message takes up to `seconds` longer, at random: those with different tags overtake each other."""

    seconds: float
    seed: int = 0


Fault = Crash | Freeze | Delay


@dataclass(frozen=True, slots=True, kw_only=True)
class Jitter:
    """How computations depart from their predicted durations: a random factor per computation, of mean 1 and standard
    deviation `spread`, and a constant factor `slowdown` on the device `straggler`.

    ``"normal"`` is cut off at 0.05; ``"exponential"`` is 1 - spread plus an exponential variable of mean `spread`.
    """

    kind: Literal["none", "normal", "log-normal", "exponential"] = "none"
    spread: float = 0.1
    straggler: str | None = None
    slowdown: float = 4.0
    seed: int = 0

    def factors(self, peer: str) -> Callable[[], float]:
        """The factors of `peer`'s computations, one per call, in the order in which they start."""
        constant = self.slowdown if peer == self.straggler else 1.0
        random, spread = Random(derive(self.seed, "jitter", peer)), self.spread
        if self.kind == "normal":
            return lambda: constant * max(0.05, random.gauss(1.0, spread))
        if self.kind == "log-normal":
            sigma = math.sqrt(math.log1p(spread * spread))
            return lambda: constant * random.lognormvariate(-0.5 * sigma * sigma, sigma)
        if self.kind == "exponential":
            return lambda: constant * (1.0 - spread + spread * random.expovariate(1.0))
        return lambda: constant


class Sleep:
    """When one peer is frozen."""

    def __init__(self, freezes: list[Freeze]) -> None:
        self._windows = sorted((f.at, f.at + f.seconds) for f in freezes)

    def awake(self, when: float) -> float:
        """The first moment from `when` on at which the peer does anything."""
        for start, stop in self._windows:
            if start <= when < stop:
                when = stop
        return when

    def after(self, start: float, duration: float) -> float:
        """When something ends that starts at `start` and takes `duration` seconds of the peer's waking time."""
        end = start + duration
        for begin, stop in self._windows:
            if stop > start and begin < end:
                end += stop - max(begin, start)
        return end
