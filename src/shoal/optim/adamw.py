"""Adam with decoupled weight decay."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn, optim

from shoal.optim._common import AdamOptions as Options
from shoal.optim._common import fused


def adamw(params: Sequence[nn.Parameter], *, lr: float, weight_decay: float, options: Options) -> optim.AdamW:
    """`torch.optim.AdamW`. Source: Loshchilov and Hutter, Decoupled Weight Decay Regularization (ICLR 2019)."""
    return optim.AdamW(params, lr=lr, weight_decay=weight_decay, fused=fused(params), **options.model_dump())


strategy = adamw
