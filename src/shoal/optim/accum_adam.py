"""Adam whose moments see the mean gradient of a window of steps: steadier where local batches are small."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from shoal.optim._accum import AccumOptimizer
from shoal.optim._accum import AccumOptions as Options


class AccumAdam(AccumOptimizer):
    """AccumAdam: weight decay is added to the gradient. With ``window=1`` it is Adam."""

    decoupled = False


def accum_adam(params: Sequence[nn.Parameter], *, lr: float, weight_decay: float, options: Options) -> AccumAdam:
    return AccumAdam(params, lr=lr, weight_decay=weight_decay, **options.model_dump())


strategy = accum_adam
