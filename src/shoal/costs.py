"""What a model costs: floating-point operations per sample, and the order in which gradients become ready.

Found by one probing forward and backward pass of a throw-away copy, with torch's own formulas per operator. Seconds
follow by dividing by the device's speed, which is the world's business.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

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
        with _FlopCount() as counter:
            total, _ = loss(model, batch)
            forward = counter.flops
            if not total.requires_grad:
                raise UserError("the loss has no gradient", key="model.loss", mend="return the summed loss as a tensor")
            total.backward()
            both = counter.flops
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


class _FlopCount(TorchDispatchMode):
    """Adds up torch's formulas for every operator that runs.

    torch's own `FlopCounterMode` would do, but it leaves out attention on the CPU, and importing the compiler on its
    behalf takes seconds that a person waits for.
    """

    def __init__(self) -> None:
        super().__init__()
        self.flops = 0.0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        packet = func._overloadpacket
        formula = _ATTENTION.get(packet)
        if formula is not None:
            self.flops += formula(*args)
        elif packet in flop_registry:
            self.flops += flop_registry[packet](*args, **(kwargs or {}), out_val=out)
        return out


_ATTENTION: dict[Any, Callable[..., float]] = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: lambda q, k, v, *_: float(
        sdpa_flop_count(q.shape, k.shape, v.shape)
    ),
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: lambda g, q, k, v, *_: float(
        sdpa_backward_flop_count(g.shape, q.shape, k.shape, v.shape)
    ),
}
