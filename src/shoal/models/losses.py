"""Losses as (sum over valid targets, number of valid targets); see `shoal.models` for why."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.errors import UserError

IGNORE = -100
"""A target with this value is not counted: padding, prompts, missing labels."""


def next_token(model: nn.Module, batch: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    """Cross entropy in nats of the next token.

    Args:
        model: maps inputs [B, T] to logits [B, T, V].
        batch: inputs and targets, both int64 [B, T]; targets of `IGNORE` are not counted.
    """
    inputs, targets = batch
    logits = model(inputs)
    return _cross_entropy(logits.flatten(0, -2), targets.flatten())


def classification(model: nn.Module, batch: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    """Cross entropy in nats of the right class.

    Args:
        model: maps inputs [B, …] to logits [B, C], or [B, C, d₁, …] for a label per position.
        batch: inputs [B, …] and labels, int64 [B] or [B, d₁, …]; labels of `IGNORE` are not counted.
    """
    inputs, labels = batch
    return _cross_entropy(model(inputs), labels)


def regression(model: nn.Module, batch: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    """Squared error, summed over all elements of the targets.

    Args:
        model: maps inputs [B, …] to predictions of the targets' shape.
        batch: inputs [B, …] and targets [B, …]; targets of NaN are not counted.

    Raises:
        UserError: predictions and targets differ in shape, and broadcasting would silently compare all with all.
    """
    inputs, targets = batch
    predictions = _at_least_float32(model(inputs))
    if predictions.shape != targets.shape:
        raise UserError(
            f"the model predicts {tuple(predictions.shape)} for targets {tuple(targets.shape)}",
            key="model.loss",
            value="shoal.models.losses:regression",
            mend="give both the same shape",
        )
    valid = ~targets.isnan()
    error = torch.where(valid, predictions - targets.where(valid, 0), 0)
    return error.square().sum(), valid.sum()


def _cross_entropy(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    total = F.cross_entropy(_at_least_float32(logits), targets, ignore_index=IGNORE, reduction="sum")
    return total, (targets != IGNORE).sum()


def _at_least_float32(x: Tensor) -> Tensor:
    """Under autocast a model returns bfloat16, in which a sum over a thousand tokens has three digits."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
