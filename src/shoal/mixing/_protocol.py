"""The seam's signature. The worker calls, for every step t:

t = await mixing.begin(t)
... forward and backward; as each block's gradient completes: spawn(mixing.update(block, t)) ...
await mixing.end(t)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from pydantic import BaseModel

from shoal.state import Block, Gate
from shoal.topology import Topology
from shoal.world import World


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """What a mixing needs and allows; an incompatible choice is refused before the run, with the reason."""

    owns_optimizer: bool = False  # an [optimizer] table beside it is refused
    topology: bool = False  # needs `mixing.topology`
    directed_ok: bool = False  # W(t) may be asymmetric (it must then still be doubly stochastic)
    replicas_equal: bool = False  # all workers hold the same parameters after every step
    agrees: bool = True  # replicas come to agree; False: each worker trains a model of its own


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What a mixing is built from."""

    world: World
    blocks: Sequence[Block]
    gate: Gate
    topology: Topology | None
    options: BaseModel


class Mixing(Protocol):
    """Constructed as ``strategy(context)``; `traits` is a class attribute, readable before construction."""

    traits: Traits

    async def begin(self, t: int) -> int:
        """Before the forward pass of step t; returns the step to do."""
        ...

    async def update(self, block: Block, t: int) -> None:
        """`block`'s gradient is complete and sealed. Returns when `block.x` is what the next forward pass reads."""
        ...

    async def end(self, t: int) -> None:
        """After all updates of t."""
        ...

    async def settle(self) -> None:
        """Returns when nothing of mine is in flight and nobody can be waiting for me: checkpoint, evaluation, leaving.

        Training may go on afterwards, with the same bits as without the call.
        """
        ...
