"""What a worker computes: forward and backward passes of micro-batches, under the job's precision.

Everything here is synchronous and runs inside `World.run` or `World.reach`. Losses are summed over valid targets and
divided by a constant, the same for all workers and steps, so gradients of unequal micro-batches add up to the gradient
of their union and the weights are about 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

from shoal.ingredients import DTYPES, Ingredients
from shoal.job import Job


def micro_batches(samples: Sequence[int], micro: int) -> list[Sequence[int]]:
    """`samples` cut into micro-batches of `micro`; the last may be shorter."""
    return [samples[k : k + micro] for k in range(0, len(samples), micro)]


def fetch(
    ingredients: Ingredients, job: Job, device: torch.device, samples: Sequence[int], *, train: bool
) -> tuple[Tensor, ...]:
    """The batch of these samples on `device`, floating-point inputs in the parameters' dtype."""
    source = ingredients.corpus.train if train else ingredients.corpus.held_out
    dtype = DTYPES[job.run.precision]
    return tuple(t.to(device=device, dtype=dtype if t.is_floating_point() else t.dtype) for t in source.batch(samples))


class Accumulator:
    """The forward and backward passes of one step's micro-batches; `loss` and `weight` are sums over them.

    Args:
        ingredients: None where nothing is ever added (timing mode).
        norm: the constant that every loss is divided by: an equal share of a step's targets.
    """

    def __init__(self, ingredients: Ingredients | None, job: Job, device: torch.device, *, norm: float) -> None:
        self._ingredients, self._job, self._device, self._norm = ingredients, job, device, norm
        self.loss = self.weight = 0.0

    def add(self, samples: Sequence[int]) -> None:
        """Add these samples' gradient. `weight` counts them before the first gradient is ready."""
        assert self._ingredients is not None
        batch = fetch(self._ingredients, self._job, self._device, samples, train=True)
        with precision(self._job, self._device):
            total, weight = self._ingredients.loss(self._ingredients.model, batch)
        self.loss += float(total.detach())
        self.weight += float(weight)
        (total / self._norm).backward()

    @property
    def share(self) -> float:
        """The weight of this worker's gradient: 1.0 for an equal share of valid targets."""
        return self.weight / self._norm


def evaluate_batch(
    model: nn.Module, ingredients: Ingredients, job: Job, device: torch.device, samples: Sequence[int]
) -> tuple[float, float]:
    """(sum of losses, weight) of held-out samples under `model`, without gradients."""
    batch = fetch(ingredients, job, device, samples, train=False)
    with torch.no_grad(), precision(job, device):
        total, weight = ingredients.loss(model, batch)
    return float(total), float(weight)


def precision(job: Job, device: torch.device) -> AbstractContextManager[object]:
    """bfloat16 autocast, if the job asks for it."""
    if job.run.precision == "bfloat16":
        return torch.autocast(device.type, torch.bfloat16)
    return nullcontext()
