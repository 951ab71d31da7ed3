"""Every worker trains alone: the local optimizer and nothing else."""

from __future__ import annotations

from shoal.mixing._base import Base
from shoal.mixing._protocol import Traits
from shoal.registry import NoOptions
from shoal.state import Block

Options = NoOptions


class Alone(Base):
    """x(t+1) = x(t) + local step. The baseline that any exchange has to beat."""

    traits = Traits(agrees=False)

    async def update(self, block: Block, t: int) -> None:
        await self.step(block, scale=await self.gate.scale(block, t))


strategy = Alone
