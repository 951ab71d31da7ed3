"""Adam; weight decay is added to the gradient."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn, optim

from shoal.optim._common import AdamOptions as Options
from shoal.optim._common import fused


def adam(params: Sequence[nn.Parameter], *, lr: float, weight_decay: float, options: Options) -> optim.Adam:
    """`torch.optim.Adam`. Source: Kingma and Ba, Adam: A Method for Stochastic Optimization (ICLR 2015)."""
    return optim.Adam(params, lr=lr, weight_decay=weight_decay, fused=fused(params), **options.model_dump())


strategy = adam
