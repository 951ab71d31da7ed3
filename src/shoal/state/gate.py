"""The gate: what needs the gradients of all blocks at once (clipping by the global norm, refusal of NaN).

With a gate in use no update starts before the last block of the step has its gradient; traffic may travel meanwhile.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from shoal.errors import Diverged, Late
from shoal.state.block import Block
from shoal.world import Key, Work, World

DEADLINE_S = 600.0


@dataclass(slots=True)
class _Round:
    """One step's blocks on their way through the gate."""

    squares: dict[Key, float] = field(default_factory=dict)
    opened: asyncio.Event = field(default_factory=asyncio.Event)
    timer: asyncio.TimerHandle | None = None
    scale: float = 1.0
    error: Diverged | Late | None = None


class Gate:
    """Decides, once per step and for all `blocks` alike, the factor of their gradients.

    The norm is over the mean gradients of all blocks of this worker; squares are added in the order of `blocks`, so
    neither arrival order nor bucket size decides who is clipped. Steps are never mixed: each has its own sum.

    Args:
        blocks: all blocks of this worker; each asks once per step.
        clip: the largest allowed norm; longer gradients are scaled by ``clip / (norm + 1e-6)``, as
            `torch.nn.utils.clip_grad_norm_` does. None: no clipping.
        refuse_nonfinite: a step whose gradients hold NaN or infinity is left out for all blocks, with an event
            ``nonfinite(step, mine)``; `mine` says that this worker's own gradient was at fault, not only the sum.
        max_bad_steps: after so many refused steps in a row the run has diverged.
        deadline_s: how long a block waits without any other block of its step coming in.
    """

    def __init__(
        self,
        world: World,
        blocks: Sequence[Block],
        *,
        clip: float | None = None,
        refuse_nonfinite: bool = True,
        max_bad_steps: int = 10,
        deadline_s: float = DEADLINE_S,
    ) -> None:
        self._world, self._blocks = world, tuple(blocks)
        self._clip, self._refuse = clip, refuse_nonfinite
        self._max_bad_steps, self._deadline_s = max_bad_steps, deadline_s
        self._rounds: dict[int, _Round] = {}
        self._bad_steps = 0

    async def scale(self, block: Block, t: int) -> float:
        """The factor for `block`'s gradient at step `t`: 1.0, a clipping factor, or 0.0 if the step must be skipped.

        Returns when all blocks of the step have asked, if the gate needs them all; at once otherwise.

        Raises:
            Diverged: too many steps in a row were refused.
            Late: the other blocks of the step do not come.
        """
        if self._clip is None and not self._refuse:
            return 1.0
        work = Work("norm", touched_bytes=float(block.wire_nbytes), lane="update")
        square = await self._world.run(block.square_norm, work, timing=0.0)
        round_ = self._rounds.setdefault(t, _Round())
        if block.key in round_.squares:
            raise ValueError(f"{block.spec.name} asked twice at step {t}")
        round_.squares[block.key] = square
        if round_.timer is not None:
            round_.timer.cancel()
        if len(round_.squares) == len(self._blocks):
            del self._rounds[t]
            self._decide(round_, t)
        else:
            loop = asyncio.get_running_loop()
            round_.timer = loop.call_later(self._deadline_s, self._give_up, round_, t)
            await round_.opened.wait()
        if round_.error is not None:
            raise round_.error
        return round_.scale

    def _decide(self, round_: _Round, t: int) -> None:
        norm = math.sqrt(sum(round_.squares[block.key] for block in self._blocks))
        if math.isfinite(norm) or not self._refuse:
            self._bad_steps = 0
            if self._clip is not None:
                round_.scale = min(1.0, self._clip / (norm + 1e-6))
        else:
            self._bad_steps += 1
            round_.scale = 0.0
            mine = not all(block.own_gradient_finite() for block in self._blocks)
            self._world.event("nonfinite", step=t, mine=mine)
            if self._bad_steps >= self._max_bad_steps:
                why = f"gradients were not finite in {self._bad_steps} steps in a row"
                round_.error = Diverged(f"peer {self._world.me!r} at step {t}: {why}")
        round_.opened.set()

    def _give_up(self, round_: _Round, t: int) -> None:
        missing = [block.spec.name for block in self._blocks if block.key not in round_.squares]
        round_.error = Late(self._world.me, t, f"no gradient of {', '.join(missing)} for {self._deadline_s:g} s")
        round_.opened.set()
