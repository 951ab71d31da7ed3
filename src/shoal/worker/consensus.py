"""The mean model over all workers, computed beside training: what is evaluated, sampled from and handed out.

Parameters are averaged by the ring; floating-point buffers (running statistics) too; an integer buffer (a counter) is
the largest of all peers'. Nothing that training reads is written.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence

import torch
from torch import nn

from shoal.state import Block
from shoal.world import Tag, Work, World, dense


class MeanModel:
    """A second copy of the model that holds the mean over workers.

    Args:
        average_parameters: false where replicas are equal already, or not meant to agree: mine are copied.
        average_buffers: false where replicas are not meant to agree.
    """

    def __init__(
        self,
        world: World,
        model: nn.Module,
        blocks: Sequence[Block],
        *,
        average_parameters: bool,
        average_buffers: bool,
    ) -> None:
        self._world, self._model, self._blocks = world, model, blocks
        self._average_parameters, self._average_buffers = average_parameters, average_buffers
        self.copy = copy.deepcopy(model).eval()
        self._targets = dict(self.copy.named_parameters())
        self._floats = [name for name, b in model.named_buffers() if b.is_floating_point()]
        self._counters = [name for name, b in model.named_buffers() if not b.is_floating_point()]

    async def refresh(self, step: int) -> float:
        """Fill `copy` with the mean after `step` steps; returns my squared distance from it."""
        distance = 0.0
        for block in self._blocks:
            distance += await self._mean_of(block, step)
        if self._average_buffers:
            await self._mean_buffers(step)
            await self._largest_counters(step)
        else:
            await self._world.run(self._copy_buffers, Work("mean", lane="serve"))
        return distance

    async def _mean_of(self, block: Block, step: int) -> float:
        work = Work("mean", touched_bytes=2.0 * block.nbytes, lane="serve")
        mean = await self._world.run(lambda: block.x.detach().clone(), work)
        if self._average_parameters and len(self._world.peers) > 1:
            tag = Tag("mean", step, block.key)
            await self._world.collective("sum", mean, self._world.peers, tag, nbytes=block.nbytes)
            await self._world.run(lambda: mean.div_(len(self._world.peers)), work)

        def place() -> float:
            for name, piece in block.pieces(mean):
                self._targets[name].data.copy_(piece)
            return float(torch.linalg.vector_norm((block.x.detach() - mean).double()).square())

        return await self._world.run(place, work, timing=0.0)

    async def _mean_buffers(self, step: int) -> None:
        if not self._floats:
            return
        buffers = dict(self._model.named_buffers())
        targets = dict(self.copy.named_buffers())
        flat = torch.cat([buffers[name].detach().double().reshape(-1) for name in self._floats])
        await self._world.collective("sum", flat, self._world.peers, Tag("mean", step, ("buffers",)))
        flat.div_(len(self._world.peers))
        for name, piece in zip(self._floats, flat.split([buffers[n].numel() for n in self._floats]), strict=True):
            targets[name].copy_(piece.reshape(buffers[name].shape))

    async def _largest_counters(self, step: int) -> None:
        if not self._counters:
            return
        world, leader = self._world, self._world.peers[0]
        buffers, targets = dict(self._model.named_buffers()), dict(self.copy.named_buffers())
        most = torch.cat([buffers[name].detach().long().reshape(-1).cpu() for name in self._counters])
        up, down = Tag("mean", step, ("counters",)), Tag("mean", step, ("largest",))
        if world.me == leader:
            for peer in world.peers[1:]:
                most = torch.maximum(most, (await world.recv(up, source=peer)).one(most))
            for peer in world.peers[1:]:
                await world.send(peer, down, dense(most))
        else:
            await world.send(leader, up, dense(most))
            most = (await world.recv(down, source=leader)).one(most)
        for name, piece in zip(self._counters, most.split([buffers[n].numel() for n in self._counters]), strict=True):
            targets[name].copy_(piece.reshape(buffers[name].shape))

    def _copy_buffers(self) -> None:
        targets = dict(self.copy.named_buffers())
        for name, buffer in self._model.named_buffers():
            targets[name].copy_(buffer)


def consensus_distance(squared: Sequence[float]) -> float:
    """Root mean square distance of the workers from their mean, from every worker's squared distance."""
    return math.sqrt(sum(squared) / len(squared))
