"""Optimizers by name: what is made, and how a wrong name, option or kind of optimizer is refused."""

from __future__ import annotations

import copy
import sys
import types
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import BaseModel
from torch import nn

import reference
from shoal import registry
from shoal.errors import UserError
from shoal.optim import build

OURS = ["accum-adam", "accum-adamw", "adam", "adamw", "sgd"]


def flat(size: int = 8) -> nn.Parameter:
    return nn.Parameter(torch.linspace(-1, 1, size, dtype=torch.float64))


def make(name: str, p: nn.Parameter | None = None, *, decay: float = 0.0, **options: Any) -> torch.optim.Optimizer:
    return build(name, [flat() if p is None else p], lr=0.1, weight_decay=decay, options=options)


def test_the_registry_lists_the_optimizers_each_with_a_line() -> None:
    entries = {entry.name: entry.summary for entry in registry.entries("optim")}
    assert sorted(entries) == OURS
    assert all(summary.endswith(".") for summary in entries.values())


@pytest.mark.parametrize(
    ("name", "options", "oracle"),
    [
        ("sgd", {}, reference.SGD(weight_decay=0.1)),
        ("sgd", {"momentum": 0.9}, reference.SGD(momentum=0.9, weight_decay=0.1)),
        ("adam", {"betas": [0.8, 0.9]}, reference.Adam(betas=(0.8, 0.9), weight_decay=0.1)),
        ("adamw", {"eps": 1e-4}, reference.AdamW(eps=1e-4, weight_decay=0.1)),
        ("accum-adam", {"window": 3}, reference.AccumAdam(window=3, weight_decay=0.1)),
        ("accum-adamw", {}, reference.AccumAdamW(window=4, weight_decay=0.1)),
        ("torch.optim:Adam", {"betas": [0.8, 0.9]}, reference.Adam(betas=(0.8, 0.9), weight_decay=0.1)),
    ],
)
def test_follows_the_reference_at_the_learning_rate_of_each_step(
    name: str, options: dict[str, Any], oracle: Any
) -> None:
    """Case D12: the rate is what the caller writes for the step, whatever the optimizer was made with."""
    p = flat()
    optimizer = make(name, p, decay=0.1, **options)
    x, rng = p.detach().numpy().copy(), np.random.default_rng(0)
    for t in range(11):
        g = rng.normal(size=8)
        p.grad = torch.from_numpy(g.copy())
        optimizer.param_groups[0]["lr"] = 0.1 / (t + 1)
        optimizer.step()
        x = oracle.step(x, g, 0.1 / (t + 1))
        np.testing.assert_allclose(p.detach().numpy(), x, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", OURS)
def test_saving_and_loading_goes_on_to_the_bit(name: str) -> None:
    options = {"momentum": 0.9} if name == "sgd" else {}
    p, grads = nn.Parameter(torch.ones(33)), torch.randn(9, 33, generator=torch.Generator().manual_seed(1))
    first = make(name, p, decay=0.1, **options)
    for g in grads[:5]:
        p.grad = g
        first.step()
    q = nn.Parameter(p.detach().clone())
    second = make(name, q, decay=0.1, **options)
    second.load_state_dict(copy.deepcopy(first.state_dict()))  # torch's own would share its tensors
    for g in grads[5:]:
        for x, optimizer in ((q, second), (p, first)):
            x.grad = g
            optimizer.step()
    assert torch.equal(p, q)


@pytest.mark.parametrize("name", ["sgd", "adam", "adamw"])
def test_torchs_own_use_the_fused_kernel_where_there_is_one(name: str) -> None:
    assert make(name).param_groups[0]["fused"]
    assert not make(name, nn.Parameter(torch.zeros(3, device="meta"))).param_groups[0]["fused"]


@pytest.mark.parametrize("name", OURS)
@pytest.mark.parametrize("seed", range(3))
def test_in_vectors_padded_to_64_bytes_the_bits_do_not_depend_on_the_layout(name: str, seed: int) -> None:
    """Blocks are padded so: another bucket size is the same training to the bit."""
    draw = torch.Generator().manual_seed(seed)
    start, grads = torch.randn(1280, generator=draw), torch.randn(5, 1280, generator=draw)
    ends = []
    for cuts in ([1280], [16, 752, 512], [320] * 4):
        parts = [nn.Parameter(x.clone()) for x in start.split(cuts)]
        options = {"momentum": 0.9} if name == "sgd" else {}
        optimizers = [make(name, part, decay=0.1, **options) for part in parts]
        for g in grads:
            for part, piece, optimizer in zip(parts, g.split(cuts), optimizers, strict=True):
                part.grad = piece.clone()
                optimizer.step()
        ends.append(torch.cat([part.detach() for part in parts]))
    assert torch.equal(ends[0], ends[1]) and torch.equal(ends[0], ends[2])


def test_torchs_other_elementwise_optimizers_by_module_and_name() -> None:
    optimizer = make("torch.optim:RMSprop", alpha=0.9, decay=0.2)
    assert isinstance(optimizer, torch.optim.RMSprop)
    group = optimizer.param_groups[0]
    assert (group["alpha"], group["lr"], group["weight_decay"]) == (0.9, 0.1, 0.2)


@pytest.mark.parametrize("name", ["LBFGS", "Muon", "Adafactor", "SparseAdam"])
def test_optimizers_that_are_wrong_on_flat_vectors_are_refused_with_the_reason(name: str) -> None:
    with pytest.raises(UserError, match="flat vectors") as caught:
        make(f"torch.optim:{name}")
    assert caught.value.key == "optimizer.name" and caught.value.value == f"torch.optim:{name}"
    assert "it " in caught.value.problem


@pytest.mark.parametrize(
    ("name", "options", "key", "mend"),
    [
        ("adamw", {"beta": 1}, "optimizer.beta", "did you mean 'betas'?"),
        ("accum-adam", {"windows": 8}, "optimizer.windows", "did you mean 'window'?"),
        ("sgd", {"zzz": 1}, "optimizer.zzz", "'momentum'"),
        ("torch.optim:RMSprop", {"alhpa": 0.9}, "optimizer.alhpa", "did you mean 'alpha'?"),
    ],
)
def test_an_unknown_option_is_refused_with_the_nearest(name: str, options: dict[str, Any], key: str, mend: str) -> None:
    """Case B2: a misspelt key is never a default in silence."""
    with pytest.raises(UserError) as caught:
        make(name, **options)
    assert caught.value.key == key and mend in caught.value.mend


@pytest.mark.parametrize(
    ("name", "options", "key"),
    [
        ("adam", {"betas": [0.9, 1.5]}, "optimizer.betas.1"),
        ("accum-adamw", {"window": 0}, "optimizer.window"),
        ("accum-adamw", {"window": "many"}, "optimizer.window"),
        ("sgd", {"nesterov": True}, "optimizer"),
        ("torch.optim:RMSprop", {"alpha": -1.0}, "optimizer"),
    ],
)
def test_a_value_out_of_range_is_refused_with_its_key(name: str, options: dict[str, Any], key: str) -> None:
    with pytest.raises(UserError) as caught:
        make(name, **options)
    assert caught.value.key == key


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(UserError, match="did you mean 'accum-adamw'"):
        make("acum-adamw")


class Plain(torch.optim.SGD):
    """As a user may write it: torch's signature, but no weight decay."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, lr=lr)


class Options(BaseModel):
    gain: float = 1.0


def by_our_signature(params: Any, *, lr: float, weight_decay: float, options: Options) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=lr * options.gain, weight_decay=weight_decay)


@pytest.fixture
def mine(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    module = types.ModuleType("mine_for_tests")
    monkeypatch.setitem(sys.modules, "mine_for_tests", module)
    return module


def test_an_optimizer_of_ones_own_with_torchs_signature(mine: types.ModuleType) -> None:
    mine.__dict__["Plain"] = Plain
    assert isinstance(make("mine_for_tests:Plain"), Plain)
    with pytest.raises(UserError, match="no weight decay"):
        make("mine_for_tests:Plain", decay=0.1)


def test_an_optimizer_of_ones_own_with_our_signature(mine: types.ModuleType) -> None:
    mine.__dict__.update(make=by_our_signature, Options=Options)
    assert make("mine_for_tests:make", gain=3.0).param_groups[0]["lr"] == pytest.approx(0.3)


def test_what_is_no_optimizer_is_refused(mine: types.ModuleType) -> None:
    mine.__dict__["make"] = lambda params, lr, **options: "nothing"
    with pytest.raises(UserError, match=r"torch\.optim\.Optimizer"):
        make("mine_for_tests:make", decay=0.1)
