"""Blocks of small models, and ordinary training loops to compare them with.

from state.building import alone, blocks_of, step
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from shoal.plan import BlockSpec
from shoal.state import Block, Watch, make_blocks, plan_blocks
from shoal.world import Owners

Factory = Callable[[Sequence[nn.Parameter], bool], torch.optim.Optimizer]


def sgd(params: Sequence[nn.Parameter], decay: bool) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=0.1, momentum=0.9, weight_decay=0.05 if decay else 0.0)


def adamw(params: Sequence[nn.Parameter], decay: bool) -> torch.optim.Optimizer:
    return torch.optim.AdamW(params, lr=0.01, weight_decay=0.1 if decay else 0.0)


def has_decay(name: str, p: Tensor) -> bool:
    return p.ndim >= 2


def specs_of(model: nn.Module, *, bucket_bytes: int = 1 << 20) -> tuple[BlockSpec, ...]:
    order = [name for name, p in model.named_parameters() if p.requires_grad][::-1]
    return plan_blocks(model, order, bucket_bytes=bucket_bytes, decay_of=has_decay)


def blocks_of(model: nn.Module, factory: Factory = sgd, *, bucket_bytes: int = 1 << 20) -> list[Block]:
    specs = specs_of(model, bucket_bytes=bucket_bytes)
    return make_blocks(model, specs, Owners(0, ("me",)), lambda flat, decay: factory([flat], decay))


def step(
    watch: Watch, blocks: Sequence[Block], loss: Callable[[Any], Tensor], batches: Sequence[Any] = (None,)
) -> list[str]:
    """One step over micro-batches whose losses add. Returns the blocks in the order in which they became ready."""
    ready: list[str] = []

    def seal(block: Block) -> None:
        block.seal(1.0)
        ready.append(block.spec.name)

    watch.begin()
    for batch in batches[:-1]:
        loss(batch).backward()
    watch.arm(seal)
    loss(batches[-1]).backward()
    watch.flush()
    for block in blocks:
        block.step()
    return ready


def alone(model: nn.Module, factory: Factory = sgd) -> Callable[..., None]:
    """An ordinary PyTorch training step of `model`: one optimizer per decay group, fresh gradients each time.

    It is called as ``train(loss, batches)``.
    """
    params = [p for p in model.parameters() if p.requires_grad]
    groups = [[p for p in params if (p.ndim >= 2) is decay] for decay in (True, False)]
    optimizers = [factory(group, decay) for group, decay in zip(groups, (True, False), strict=True) if group]

    def train(loss: Callable[[Any], Tensor], batches: Sequence[Any] = (None,)) -> None:
        for batch in batches:
            loss(batch).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()

    return train
