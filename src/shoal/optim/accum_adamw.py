"""AccumAdam with decoupled weight decay."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from shoal.optim._accum import AccumOptimizer
from shoal.optim._accum import AccumOptions as Options


class AccumAdamW(AccumOptimizer):
    """AccumAdamW: parameters shrink by ``1 - lr * weight_decay`` before the step. With ``window=1`` it is AdamW."""

    decoupled = True


def accum_adamw(params: Sequence[nn.Parameter], *, lr: float, weight_decay: float, options: Options) -> AccumAdamW:
    return AccumAdamW(params, lr=lr, weight_decay=weight_decay, **options.model_dump())


strategy = accum_adamw
