"""The gate: what needs the gradients of all blocks at once (clipping by the global norm, refusal of NaN)."""

from __future__ import annotations

from typing import Protocol

from shoal.state.block import Block


class Gate(Protocol):
    async def scale(self, block: Block, t: int) -> float:
        """The factor for `block`'s gradient at step `t`: 1.0, a clipping factor, or 0.0 if the step must be skipped.

        Returns when all blocks of the step have asked, if the gate needs them all; at once otherwise.
        """
        ...
