"""Stochastic gradient descent, with momentum if wanted."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field, model_validator
from torch import nn, optim

from shoal.optim._common import OptimOptions, fused


class Options(OptimOptions):
    momentum: float = Field(0.0, ge=0)
    dampening: float = Field(0.0, ge=0)
    nesterov: bool = False

    @model_validator(mode="after")
    def _nesterov_needs_momentum(self) -> Options:
        if self.nesterov and (self.momentum == 0 or self.dampening != 0):
            raise ValueError("nesterov needs momentum > 0 and dampening = 0")
        return self


def sgd(params: Sequence[nn.Parameter], *, lr: float, weight_decay: float, options: Options) -> optim.SGD:
    """`torch.optim.SGD`; weight decay is added to the gradient."""
    return optim.SGD(params, lr=lr, weight_decay=weight_decay, fused=fused(params), **options.model_dump())


strategy = sgd
