"""Blocks are heard of as soon as their gradients are complete, once, in the last micro-batch only."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from shoal.errors import UserError
from shoal.state import Block, Watch
from state.building import blocks_of, step


def layers(n: int) -> nn.Sequential:
    return nn.Sequential(*(nn.Linear(2, 2, bias=False) for _ in range(n)))


def test_blocks_become_ready_during_backward_last_layer_first() -> None:
    model = layers(4)
    blocks = blocks_of(model, bucket_bytes=16)
    watch = Watch(blocks)
    seen: list[str] = []
    hooked = {str(k): layer for k, layer in enumerate(model)}
    for name, layer in hooked.items():
        layer.register_full_backward_pre_hook(lambda *_, name=name: seen.append(f"into {name}"))
    watch.begin()
    watch.arm(lambda block: seen.append(block.spec.slices[0].name))
    model(torch.ones(1, 2)).sum().backward()
    assert seen == [w for k in (3, 2, 1, 0) for w in (f"into {k}", f"{k}.weight")]
    watch.flush()
    assert len(seen) == 8


def test_only_the_last_micro_batch_is_heard() -> None:
    """Case D7, defect T.7-5: gradients of all micro-batches add up, the block travels once."""
    model = nn.ParameterDict({"w": nn.Parameter(torch.zeros(1))})
    (block,) = blocks_of(model)
    watch = Watch([block])
    sealed: list[float] = []

    def seal(block: Block) -> None:
        block.seal(1.0)
        sealed.append(block.g[0].item())

    watch.begin()
    model["w"].mul(1.0).sum().backward()
    assert not sealed
    watch.arm(seal)
    model["w"].mul(3.0).sum().backward()
    watch.flush()
    assert sealed == [4.0]


def test_unused_parameters_are_flushed_in_block_order() -> None:
    model = layers(4)
    blocks = blocks_of(model, bucket_bytes=16)
    ready = step(Watch(blocks), blocks, lambda _: model[1](torch.ones(1, 2)).sum())
    assert ready == ["block-2", "block-0", "block-1", "block-3"]


def test_a_parameter_used_twice_is_heard_once() -> None:
    """Lesson 13: when both gradients are in."""
    model = layers(1)
    blocks = blocks_of(model)
    assert step(Watch(blocks), blocks, lambda _: model[0](model[0](torch.ones(1, 2))).sum()) == ["block-0"]


@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpointing_works_or_is_refused(reentrant: bool) -> None:
    """Lesson 13: under reentrant checkpointing a shared parameter's hook fires once per segment, too early."""
    model = layers(1)
    blocks = blocks_of(model)
    watch = Watch(blocks)
    x = torch.ones(1, 2, requires_grad=True)

    def loss(_: None) -> Tensor:
        y = checkpoint(model[0], x, use_reentrant=reentrant)
        return checkpoint(model[0], y, use_reentrant=reentrant).sum()

    if reentrant:
        with pytest.raises(UserError, match=r"0\.weight.*second gradient.*use_reentrant=False"):
            step(watch, blocks, loss)
    else:
        assert step(watch, blocks, loss) == ["block-0"]


def test_two_backward_passes_of_the_last_micro_batch_are_refused() -> None:
    model = layers(2)
    watch = Watch(blocks_of(model))
    watch.begin()
    watch.arm(lambda block: block.seal(1.0))
    model(torch.ones(1, 2)).sum().backward()
    with pytest.raises(UserError, match="second gradient"):
        model(torch.ones(1, 2)).sum().backward()


def test_a_forward_pass_without_backward_changes_nothing() -> None:
    """Defects T.7-4 and T.7-14: a shape probe or two forward passes per step are nobody's business."""
    model = layers(2)
    blocks = blocks_of(model, bucket_bytes=16)
    watch = Watch(blocks)
    for _ in range(3):
        before = blocks[1].x.clone()
        with torch.no_grad():
            model(torch.ones(1, 2))
        assert len(step(watch, blocks, lambda _: model(torch.ones(1, 2)).sum() - model(torch.zeros(1, 2)).sum())) == 2
        assert not torch.equal(blocks[1].x, before)


def test_flushing_without_arming_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="arm"):
        Watch(blocks_of(layers(1))).flush()
