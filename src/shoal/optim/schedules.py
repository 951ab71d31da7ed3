"""Learning-rate schedules: pure functions of the step, the same on every worker and after every resume."""

from __future__ import annotations

import math
from collections.abc import Callable

from shoal.errors import UserError

LearningRate = Callable[[int], float]
"""Step t = 0, 1, … → the learning rate of its update."""

_SHAPES: dict[str, Callable[[float], float]] = {
    "constant": lambda progress: 1.0,
    "linear": lambda progress: 1.0 - progress,
    "cosine": lambda progress: 0.5 * (1.0 + math.cos(math.pi * progress)),
}
"""Name → how much of the way down to the floor is left, from 1 (progress 0, after warm-up) to the end (progress 1)."""


def learning_rate(name: str, *, base: float, steps: int, warmup: int = 0, floor: float = 0.0) -> LearningRate:
    """The schedule `name` for a run of `steps` steps.

    During warm-up the rate rises linearly, ``base * (t + 1) / (warmup + 1)``: it is never 0, and it reaches `base` at
    t = `warmup`. From there it falls to ``base * floor`` at the last step, t = `steps` - 1, and stays there. A run that
    is shorter than its warm-up ends before `base` is reached.

    Args:
        name: ``"constant"`` (after warm-up; has no floor), ``"linear"`` or ``"cosine"``.
        base: the highest learning rate.
        steps: steps of the whole run, warm-up included.
        warmup: steps before `base` is reached.
        floor: share of `base` that is left at the end.

    Raises:
        UserError: unknown name, or a number out of range.
    """
    if name not in _SHAPES:
        raise UserError("no such schedule", key="schedule.name", value=name, mend=f"write one of {', '.join(_SHAPES)}")
    if steps < 1:
        raise UserError("a run has at least one step", key="run.steps", value=steps)
    if warmup < 0:
        raise UserError("warm-up cannot be negative", key="schedule.warmup", value=warmup)
    if not 0 <= floor <= 1:
        raise UserError("the floor is a share of the learning rate, from 0 to 1", key="schedule.floor", value=floor)
    shape, fall = _SHAPES[name], max(1, steps - 1 - warmup)
    low = base if name == "constant" else base * floor

    def rate(t: int) -> float:
        if t < warmup:
            return base * (t + 1) / (warmup + 1)
        left = shape(min(1.0, (t - warmup) / fall))
        return base * left + low * (1.0 - left)  # exact at both ends

    return rate
