"""A snapshot is of a model, not of blocks: any layout can write it and any other read it."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from shoal.errors import UserError
from shoal.state import Block, Watch
from shoal.state.snapshot import capture, restore
from state.building import Factory, adamw, blocks_of, sgd, step


class Net(nn.Module):
    """Frozen, tied, used-by-turns, 0-dimensional and channels_last parameters; batch statistics."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(2, 4, 2).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.norm = nn.BatchNorm1d(4)
        self.fixed = nn.Linear(4, 4).requires_grad_(False)
        self.heads = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.tied = nn.Linear(4, 4, bias=False)
        self.tied.weight = self.heads[0].get_parameter("weight")
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.register_buffer("scratch", torch.zeros(1), persistent=False)
        self.double()

    def forward(self, batch: tuple[Tensor, int]) -> Tensor:
        x, head = batch
        y = self.norm(self.fixed(self.tied(self.conv(x).flatten(2).sum(2))))
        return (self.heads[head](torch.tanh(y)) * self.scale).square().mean()


def batch(t: int) -> tuple[Tensor, int]:
    return torch.randn(5, 2, 3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(t)), t % 2


def trained(
    factory: Factory, steps: range, bucket_bytes: int, saved: Any = None
) -> tuple[Net, list[Block], list[Tensor]]:
    model = Net()
    if saved is not None:
        with torch.no_grad():
            for p in model.parameters():
                p.add_(1.0)  # whatever was there before is overwritten
    blocks = blocks_of(model, factory, bucket_bytes=bucket_bytes)
    watch = Watch(blocks)
    if saved is not None:
        restore(model, blocks, *saved)
    for t in steps:
        step(watch, blocks, model, [batch(t)])
    return model, blocks, [t.detach().clone() for t in model.state_dict().values()]


def saved_after(factory: Factory, steps: int, bucket_bytes: int = 200) -> Any:
    model, blocks, _ = trained(factory, range(steps), bucket_bytes)
    tensors, scalars = capture(model, blocks)
    return {key: t.clone() for key, t in tensors.items()}, scalars


def rmsprop(params: Any, decay: bool) -> torch.optim.Optimizer:
    return torch.optim.RMSprop(params, lr=0.01, momentum=0.5, centered=True)


@pytest.mark.parametrize("factory", [sgd, adamw, rmsprop])
@pytest.mark.parametrize("steps", [0, 1, 2, 5])
@pytest.mark.parametrize("bucket_bytes", [1, 200, 1 << 20])
def test_resuming_gives_the_same_bits_with_any_bucket_size(factory: Factory, steps: int, bucket_bytes: int) -> None:
    """Test T.8 h, defect T.7-19. After one step some heads have no optimizer state, then other step counts."""
    _, _, want = trained(factory, range(8), 300)
    _, _, got = trained(factory, range(steps, 8), bucket_bytes, saved_after(factory, steps))
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


def test_a_parameter_that_catches_up_ends_the_split() -> None:
    """Parameters with equal step counts share one optimizer again after a resume."""
    saved = saved_after(adamw, 4)  # each head was used twice, the body four times
    model = Net()
    blocks = blocks_of(model, adamw, bucket_bytes=1)
    restore(model, blocks, *saved)
    again = capture(model, blocks)
    assert again[0].keys() == saved[0].keys()
    assert all(torch.equal(again[0][key], saved[0][key]) for key in saved[0])


def test_keys_are_the_models_own_names() -> None:
    """Cases G6 and C17: ``model/`` is a plain state dict of the bare module; unused parameters have no state."""
    tensors, scalars = saved_after(adamw, 2)
    assert scalars == {}
    plain = {key.removeprefix("model/"): t for key, t in tensors.items() if key.startswith("model/")}
    missing, unexpected = Net().load_state_dict(plain, strict=False)
    assert (missing, unexpected) == (["tied.weight"], [])
    assert tensors["optimizer.exp_avg/conv.weight"].shape == (4, 2, 2, 2)
    assert tensors["optimizer.step/conv.weight"] == 2 and tensors["optimizer.step/heads.1.weight"] == 1
    assert "optimizer.step/heads.2.weight" not in tensors and "optimizer.step/fixed.weight" not in tensors
    assert "model/norm.num_batches_tracked" in tensors and "model/scratch" not in tensors


def test_a_mixings_vectors_travel_with_their_parameters() -> None:
    """Case F5: keyed by parameter, not by bucket."""
    model = Net()
    blocks = blocks_of(model, sgd, bucket_bytes=1)
    for block in blocks:
        block.mixing_state["choco.xhat"] = block.x.clone().mul_(3)
    tensors, scalars = capture(model, blocks)
    other = Net()
    whole = blocks_of(other, sgd)
    restore(other, whole, tensors, scalars)
    for block in whole:
        assert torch.equal(block.mixing_state["choco.xhat"], block.x * 3)


def numbers(params: Any, decay: bool) -> torch.optim.Optimizer:
    """An optimizer that counts in plain numbers."""

    class Counting(torch.optim.SGD):
        def step(self, closure: None = None) -> None:
            for p in self.param_groups[0]["params"]:
                if p.grad is not None:
                    self.state[p]["count"] = self.state[p].get("count", 0) + 1
                    self.state[p]["rate"] = 0.1 / self.state[p]["count"]
                    p.data.sub_(p.grad, alpha=self.state[p]["rate"])

    return Counting(params)


def test_an_optimizers_plain_numbers_are_kept() -> None:
    tensors, scalars = saved_after(numbers, 3)
    assert scalars["optimizer.count/conv.weight"] == 3 and scalars["optimizer.rate/heads.1.bias"] == 0.1
    _, _, want = trained(numbers, range(6), 200)
    _, _, got = trained(numbers, range(3, 6), 1 << 20, (tensors, scalars))
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


def refused(saved: Any, match: str, model: nn.Module | None = None, factory: Factory = adamw) -> None:
    model = model or Net()
    blocks = blocks_of(model, factory)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(UserError, match=match):
        restore(model, blocks, *saved)
    if "another model" in match:
        assert all(torch.equal(a, before[name]) for name, a in model.state_dict().items())


def test_another_model_is_refused() -> None:
    """Case D9: the first differing name with both shapes and dtypes."""
    tensors, scalars = saved_after(adamw, 2)

    def other(**changes: Tensor | None) -> Any:
        return {key: t for key, t in (tensors | changes).items() if t is not None}, scalars

    w = "model/heads.1.weight"
    refused(
        other(**{w: None}), r"another model: heads\.1\.weight is absent in the checkpoint and \(4, 4\) float64 here"
    )
    refused(other(**{w: torch.zeros(4, 5)}), r"another model: heads\.1\.weight is \(4, 5\) float32")
    refused(other(**{w: torch.zeros(4, 4)}), r"another model: heads\.1\.weight is \(4, 4\) float32 .* \(4, 4\) float64")
    refused(other(**{"model/deep.weight": torch.zeros(1)}), r"another model: deep\.weight is \(1,\) .* absent here")
    refused(other(**{"model/norm.running_var": None}), r"another model: norm\.running_var is absent in")


def test_missing_and_unused_keys_are_never_silent() -> None:
    """Case E14."""
    tensors, scalars = saved_after(adamw, 2)
    gone = {key: t for key, t in tensors.items() if key != "optimizer.exp_avg_sq/conv.bias"}
    refused((gone, scalars), "conv.bias: no optimizer state 'exp_avg_sq'")
    refused((tensors | {"optimizer.exp_avg/fixed.weight": torch.zeros(4, 4)}, scalars), "nobody reads.*fixed.weight")
    refused((tensors | {"surprise/conv.bias": torch.zeros(4)}, scalars), "unknown field.*surprise")
    refused((tensors | {"optimizer.exp_avg/conv.bias": torch.zeros(5)}, scalars), r"conv.bias: shape \(5,\).*\(4,\)")


def test_extra_state_is_refused_rather_than_lost() -> None:
    class Extra(nn.Linear):
        def get_extra_state(self) -> dict[str, int]:
            return {"calls": 3}

    model = nn.Sequential(Extra(2, 2))
    with pytest.raises(UserError, match=r"extra state.*0\._extra_state"):
        capture(model, blocks_of(model))
