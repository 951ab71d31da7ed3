"""Hears which gradients are there, so that a block can travel while the backward pass still works on the next one.

Autograd's hooks cannot await, so they only count; when a block's last parameter has its gradient, the caller's `ready`
is told, which seals the block and marks its key for the world.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from shoal.errors import UserError
from shoal.state.block import Block


class Watch:
    """Watches the blocks of one model. The worker calls, inside computations, for every step::

        watch.begin()        # before the first forward pass: blocks are closed
        ...                  # all micro-batches but the last: gradients accumulate
        watch.arm(ready)     # before the last micro-batch
        loss.backward()      # calls ready(block) as each block completes
        watch.flush()        # calls it for blocks with parameters that this micro-batch did not use

    A parameter that is used twice in a pass, a tied one for example, is heard once, when both gradients are in.
    """

    def __init__(self, blocks: Sequence[Block]) -> None:
        self._blocks = tuple(blocks)
        self._ready: Callable[[Block], None] | None = None
        self._heard: dict[Block, set[int]] = {}
        for block in self._blocks:
            block.heard = self._hear

    def begin(self) -> None:
        """Forward and backward passes of a step may read the parameters from now on."""
        self._ready = None
        for block in self._blocks:
            block.close()

    def arm(self, ready: Callable[[Block], None]) -> None:
        """The next backward pass is the step's last: call `ready` with each block whose gradient is complete."""
        self._ready = ready
        self._heard = {block: set() for block in self._blocks}

    def flush(self) -> None:
        """The backward pass is over: call `ready` with the blocks that are left, in their order, and disarm."""
        ready = self._ready
        if ready is None:
            raise ValueError("flush() before arm()")
        self._ready = None
        for block in self._blocks:
            if len(self._heard[block]) < len(block.spec.slices):
                ready(block)

    def _hear(self, block: Block, k: int) -> None:
        if self._ready is None:
            return
        heard = self._heard[block]
        if k in heard:
            raise UserError(
                f"parameter {block.spec.slices[k].name!r} got a second gradient in one micro-batch",
                key="model.factory",
                mend="call checkpoint(..., use_reentrant=False), and backward() once per micro-batch",
            )
        heard.add(k)
        if len(heard) == len(block.spec.slices):
            self._ready(block)
