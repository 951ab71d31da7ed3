"""What all mixings share: where they keep their context, defaults that do nothing, and the update as a computation."""

from __future__ import annotations

from functools import partial

from torch import Tensor

from shoal.mixing._protocol import Context, Traits
from shoal.state import Block
from shoal.world import Work


class Base:
    """A mixing in which nothing happens before or after the updates and nothing is ever in flight."""

    traits = Traits()

    def __init__(self, context: Context) -> None:
        self.context = context
        self.world, self.blocks, self.gate = context.world, context.blocks, context.gate

    async def begin(self, t: int) -> int:
        return t

    async def end(self, t: int) -> None:
        pass

    async def settle(self) -> None:
        pass

    async def step(self, block: Block, *, scale: float, base: Tensor | None = None) -> None:
        """`Block.step` on the lane ``"update"``, at the cost of one update."""
        work = Work("update", touched_bytes=block.update_bytes, lane="update")
        await self.world.run(partial(block.step, base, scale), work)
