"""All workers step with the mean gradient over all samples: synchronous data parallelism.

Gradients are summed together with the weights of their samples, so unequal shares, masked tokens and workers without
any sample are weighted by what they really hold, and the result is that of one process on the joined batch.
"""

from __future__ import annotations

from shoal.mixing._base import Base
from shoal.mixing._protocol import Traits
from shoal.registry import NoOptions
from shoal.state import Block
from shoal.world import Tag

Options = NoOptions


class AllReduce(Base):
    """x(t+1) = x(t) + local step with ``sum_i g_i / sum_i w_i``, the same on all workers to the bit.

    The sum travels as soon as the block is complete, during the rest of the backward pass.
    """

    traits = Traits(replicas_equal=True)

    async def update(self, block: Block, t: int) -> None:
        peers = block.owners.peers
        if len(peers) > 1:
            await self.world.collective("sum", block.wire, peers, Tag("reduce", t, block.key), nbytes=block.wire_nbytes)
        await self.step(block, scale=await self.gate.scale(block, t))


strategy = AllReduce
