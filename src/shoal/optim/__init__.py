"""The local optimizers that a mixing calls, and learning-rate schedules.

Optimizers are one file each, listed by ``shoal list optim``: ``strategy(params, *, lr, weight_decay, options)`` returns
a `torch.optim.Optimizer` over flat vectors, so only elementwise optimizers qualify. ``torch.optim:NAME`` works too.
The caller writes the step's learning rate into ``param_groups``; learning-rate schedules are pure functions of the
step: nothing to checkpoint, nothing to drift.
"""

from shoal.optim._build import build
from shoal.optim.schedules import LearningRate, learning_rate

__all__ = ["LearningRate", "build", "learning_rate"]
