"""What a model costs: floating-point operations per sample, and the order in which gradients become ready.

Found by one probing forward and backward pass of a throw-away copy, with torch's own counter. Seconds follow by
dividing by the device's speed, which is the world's business.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from shoal.errors import UserError

Loss = Callable[[nn.Module, tuple[Tensor, ...]], tuple[Tensor, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """FLOPs per sample, and the names of trainable parameters in the order their gradients become ready.

    Parameters that the probing pass did not use come last, in the model's order.
    """

    forward_flops: float
    backward_flops: float
    ready_order: tuple[str, ...]


def profile(model: nn.Module, loss: Loss, batch: tuple[Tensor, ...]) -> Profile:
    """Run one forward and backward of a copy of `model` on `batch` (first dimension: samples); `model` is untouched.

    Raises:
        UserError: the loss has no gradient, or nothing is trainable.
    """
    model = copy.deepcopy(model)
    trainable = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    if not trainable:
        raise UserError("the model has no trainable parameter", key="model.factory", mend="leave requires_grad on")
    order: list[str] = []
    hooks = [p.register_post_accumulate_grad_hook(_note(order, name)) for name, p in trainable]
    state = torch.get_rng_state()
    try:
        with FlopCounterMode(display=False) as counter:
            total, _ = loss(model, batch)
            forward = float(counter.get_total_flops())
            if not total.requires_grad:
                raise UserError("the loss has no gradient", key="model.loss", mend="return the summed loss as a tensor")
            total.backward()
            both = float(counter.get_total_flops())
    finally:
        torch.set_rng_state(state)
        for hook in hooks:
            hook.remove()
    samples = max(1, batch[0].shape[0])
    least = 2.0 * sum(p.numel() for _, p in trainable)  # models of elementwise operations count as zero
    seen = set(order)
    return Profile(
        forward_flops=max(forward / samples, least),
        backward_flops=max((both - forward) / samples, 2 * least),
        ready_order=(*order, *(name for name, _ in trainable if name not in seen)),
    )


def _note(order: list[str], name: str) -> Callable[[Tensor], None]:
    return lambda _: order.append(name)
