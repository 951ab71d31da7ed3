"""Workers average their parameters with a few neighbours while they compute (adapt-while-combine).

    x_i(t+1) = sum_j W_ij(t) x_j(t) + d_i(t)

d_i(t) is the local optimizer's step for the gradient at x_i(t), the *unmixed* parameters. So the mix of x(t) travels
while the gradient of step t is computed, and a transfer costs nothing as long as it is shorter than an iteration. The
workers' mean follows the mean of their steps exactly, since every W(t) is doubly stochastic.

Source: Wang, Zhang, Wu and Johansson, "From Promise to Practice: Realizing High-performance Decentralized Training",
ICLR 2025 (their "communicate while adapt").
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from shoal.errors import Diverged, UserError
from shoal.mixing._base import Base
from shoal.mixing._protocol import Context, Traits
from shoal.registry import NoOptions
from shoal.state import Block
from shoal.world import Key, Message, Owners, Payload, Peer, Tag, Task, Work, only_bytes

Options = NoOptions


@dataclass(frozen=True, slots=True)
class _Row:
    """What W(t) means for me: whom I take from (me included) and give to, or the group that I average with."""

    takes: Mapping[Peer, float]
    gives: Sequence[Peer]
    group: Sequence[Peer] | None

    @property
    def alone(self) -> bool:
        return len(self.takes) == 1 and not self.gives


class Gossip(Base):
    """Adapt-while-combine. The mix of step t is launched right after the block's update of step t - 1, from the very
    parameters that step t starts with, and awaited by the update of step t: it has a full iteration to arrive.

    `begin` launches what is not in flight: at the start of a run and after a resume, with that step's own weights.
    """

    traits = Traits(topology=True, directed_ok=True)

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        if context.topology is None:
            raise UserError(
                "gossip needs a topology", key="mixing.topology", mend='write for example topology = "ring"'
            )
        self.topology = context.topology
        self._flight: dict[Key, Task[Tensor] | None] = {}  # None: nobody to mix with
        self._launched = -1  # the step whose mixes are in flight
        self._row: tuple[int, Owners, _Row] | None = None

    async def begin(self, t: int) -> int:
        if self._flight and self._launched != t:
            raise ValueError(f"step {t} begins, but the mixes in flight are of step {self._launched}")
        for block in self.blocks:
            if block.key not in self._flight:
                self._launch(block, t)
        return t

    async def update(self, block: Block, t: int) -> None:
        scale = await self.gate.scale(block, t)
        mix = self._flight.pop(block.key)
        await self.step(block, scale=scale, base=None if mix is None else await mix)
        self._launch(block, t + 1)

    async def settle(self) -> None:
        """All mixes have arrived and all of mine were sent. Their results are kept for the next update."""
        for mix in self._flight.values():
            if mix is not None:
                await mix

    def _launch(self, block: Block, t: int) -> None:
        row = self._weights(block.owners, t)
        self._launched = t
        self._flight[block.key] = None if row.alone else self.world.spawn(self.mix(block, t, row), "mix")

    def _weights(self, owners: Owners, t: int) -> _Row:
        """My row of W(t); all blocks of a step share it."""
        if self._row is None or self._row[0] != t or self._row[1] is not owners:
            where = (owners.peers, owners.island, t, self.world.me)
            group = self.topology.group(*where)
            row = _Row(self.topology.takes(*where), self.topology.gives(*where), group)
            self._row = (t, owners, row)
        return self._row[2]

    async def mix(self, block: Block, t: int, row: _Row) -> Tensor:
        """My row of ``W(t) X(t)`` for `block`, in a tensor of its own. Nobody may write `block.x` until it returns."""
        tag = Tag("mix", t, block.key)
        if row.group is not None and len(row.group) > 2:
            return await self._average(block, row.group, tag)
        sends = [self.world.spawn(self.world.send(to, tag, self.body(block)), "mix") for to in row.gives[:-1]]
        for to in row.gives[-1:]:  # the last, often the only one, needs no task of its own
            await self.world.send(to, tag, self.body(block))
        others = [peer for peer in sorted(row.takes) if peer != self.world.me]
        messages = {peer: await self.world.recv(tag, source=peer) for peer in others}
        work = Work("mix", touched_bytes=float((len(messages) + 2) * block.nbytes), lane="update")
        mixed = await self.world.run(partial(self._combine, block, row.takes, messages, t), work, timing=block.x)
        for send in sends:
            await send
        return mixed

    def body(self, block: Block) -> Payload:
        return Payload((block.x,), block.nbytes) if self.world.numeric else only_bytes(block.nbytes)

    async def _average(self, block: Block, group: Sequence[Peer], tag: Tag) -> Tensor:
        """The mean over `group`, by a collective on a copy."""
        touched = float(2 * block.nbytes)
        total = await self.world.run(
            partial(self._copy, block, tag.step), Work("mix", touched_bytes=touched, lane="update"), timing=block.x
        )
        nbytes = block.numel * block.g.element_size()
        await self.world.collective("sum", total, group, tag, nbytes=nbytes)
        divide = partial(_divide, total, group, tag)
        return await self.world.run(divide, Work("mix", touched_bytes=touched, lane="update"), timing=total)

    def _combine(self, block: Block, takes: Mapping[Peer, float], messages: Mapping[Peer, Message], t: int) -> Tensor:
        """The weighted sum in the order of peers, whatever arrived first; 16-bit parameters are summed in float32."""
        mixed = torch.zeros_like(block.x, dtype=block.g.dtype)
        for peer in sorted(takes):
            part = messages[peer].one(block.x) if peer in messages else block.x
            mixed.add_(part, alpha=takes[peer])
        self._check_own(block, mixed, t)
        return mixed

    def _copy(self, block: Block, t: int) -> Tensor:
        self._check_own(block, block.x, t)
        return block.x.to(block.g.dtype, copy=True)

    def _check_own(self, block: Block, x: Tensor, t: int) -> None:
        """The others' parts are finite; if `x` is not, mine is to blame: say so before anybody else must."""
        if not finite(x):
            raise Diverged(f"peer {self.world.me!r} at step {t}: the parameters of {block.spec.name} are not finite")


def _divide(total: Tensor, group: Sequence[Peer], tag: Tag) -> Tensor:
    if not finite(total):
        raise Diverged(f"step {tag.step}: the mean of {', '.join(group)} is not finite")
    return total.div_(len(group))


def finite(x: Tensor) -> bool:
    """Are all elements finite? The sum is a quick test that can only err by overflowing."""
    return bool(x.sum().isfinite()) or bool(x.isfinite().all())


strategy = Gossip
