"""A block: the flat piece of parameters that becomes ready, is agreed on, updated, sent and stored together."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from shoal.plan import BlockSpec
from shoal.world import Key, Owners


class Block(Protocol):
    """Handed to a mixing. Tensors are touched only inside `World.run`, by one writer at a time.

    `x` holds the parameters and is what the next forward pass reads. `g` holds the sum of gradients over this worker's
    samples, scaled by a constant that is the same on all peers; `wire` is `g` followed by what must be summed with it:
    the weight (this worker's share of the step's samples, about 1.0) and, per parameter, the weight that used it. After
    `wire` was summed over peers, ``g / weight()`` is the mean gradient over all their samples.
    """

    key: Key  # (spec.name,)
    spec: BlockSpec
    owners: Owners
    x: Tensor  # [numel]
    g: Tensor  # [numel], a view of `wire`
    wire: Tensor  # [numel + 1 + number of parameters]

    @property
    def numel(self) -> int: ...
    @property
    def nbytes(self) -> int:
        """Bytes of `x` on the wire."""
        ...

    @property
    def wire_nbytes(self) -> int: ...
    def seal(self, weight: float) -> None:
        """The gradient is complete: write the weight and the use counts into `wire`."""
        ...

    def weight(self) -> float:
        """The weight in `wire`: mine after `seal`, the sum over peers after a reduction."""
        ...

    def square_norm(self) -> float:
        """Sum of squares of the mean gradient ``g / weight()``."""
        ...

    def step(self, base: Tensor | None = None, scale: float = 1.0) -> None:
        """``x <- base`` (if given), then the local optimizer's step with gradient ``scale * g / weight()``, in place;
        then ``g`` is zero. A scale of 0.0 means: leave the gradient out (`x <- base` only)."""
        ...
