"""Models that Shoal ships (a small GPT), losses, text generation, and building any ``nn.Module`` by name.

A loss is ``loss(model, batch) -> (total, weight)``: the *sum* over valid targets and their number, so that gradients
of unequal micro-batches and of masked tokens are weighted by what they really contain. `total` is a scalar tensor with
a gradient, `weight` a number or a scalar tensor; `total / weight` over all micro-batches of all workers is the loss.
A micro-batch without a valid target is (0, 0), never NaN.
"""

from shoal.models.build import build, load_loss
from shoal.models.generate import sample

__all__ = ["build", "load_loss", "sample"]
