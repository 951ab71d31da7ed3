"""Models that Shoal ships (a small GPT), losses, text generation, and building any ``nn.Module`` by name.

A loss is ``loss(model, batch) -> (total, weight)``: the *sum* over valid targets and their number, so that gradients
of unequal micro-batches and of masked tokens are weighted by what they really contain.
"""

from shoal.models.build import build, load_loss

__all__ = ["build", "load_loss"]
