"""Blocks train as an ordinary model does, whatever its parameters look like."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import pytest
import torch
from torch import Tensor, nn

from shoal.errors import Race, UserError
from shoal.plan import BlockSpec, ParamSlice
from shoal.state import Block, Watch, make_blocks
from shoal.state.layout import Layout
from shoal.world import Owners
from state.building import Factory, adamw, alone, blocks_of, sgd, specs_of, step

BUCKETS = [1, 300, 1 << 20]


def adam(params: Sequence[nn.Parameter], decay: bool) -> torch.optim.Optimizer:
    return torch.optim.Adam(params, lr=0.01, weight_decay=0.1 if decay else 0.0)


class Heads(nn.Module):
    """A body and three heads, of which a step uses what it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(3, 5)
        self.heads = nn.ModuleList(nn.Linear(5, 2) for _ in range(3))

    def forward(self, x: Tensor, heads: Sequence[int]) -> Tensor:
        y = torch.tanh(self.body(x))
        return sum((self.heads[k](y).square().sum() for k in heads), start=torch.zeros((), dtype=x.dtype))


def assert_same(model: nn.Module, plain: nn.Module) -> None:
    for (name, p), (_, q) in zip(model.named_parameters(), plain.named_parameters(), strict=True):
        assert torch.equal(p, q), f"{name}: {(p - q).abs().max()}"


Model = TypeVar("Model", bound=nn.Module)


def pair_of(model: Model, factory: Factory, bucket_bytes: int) -> tuple[Model, list[Block], Watch, Callable[..., None]]:
    """`model` in blocks, and how to train it in the ordinary way."""
    plain = copy.deepcopy(model)
    blocks = blocks_of(model, factory, bucket_bytes=bucket_bytes)
    return plain, blocks, Watch(blocks), alone(plain, factory)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("factory", [sgd, adam, adamw])
@pytest.mark.parametrize("bucket_bytes", BUCKETS)
def test_a_lone_worker_trains_as_the_plain_optimizer_to_the_bit(
    dtype: torch.dtype, factory: Factory, bucket_bytes: int
) -> None:
    """Case C13, test T.8 k."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 7), nn.Tanh(), nn.LayerNorm(7), nn.Linear(7, 2)).to(dtype)
    plain, blocks, watch, train = pair_of(model, factory, bucket_bytes)
    for _ in range(20):
        x = torch.randn(2, 4, 3, dtype=dtype)
        step(watch, blocks, lambda batch: model(batch).square().mean(), list(x))
        train(lambda batch: plain(batch).square().mean(), list(x))
    assert_same(model, plain)


@pytest.mark.parametrize("factory", [sgd, adam, adamw])
@pytest.mark.parametrize("bucket_bytes", BUCKETS)
def test_unused_parameters_keep_value_and_optimizer_state(factory: Factory, bucket_bytes: int) -> None:
    """Case D4, defect T.7-11: no weight decay, momentum or step count for what had no gradient; it trains when used."""
    torch.manual_seed(1)
    model = Heads().double()
    plain, blocks, watch, train = pair_of(model, factory, bucket_bytes)
    never = [p.detach().clone() for p in model.heads[2].parameters()]
    for t in range(12):
        batch = torch.randn(4, 3, dtype=torch.float64), [(0,), (0, 1), (), (1,)][t % 4]
        step(watch, blocks, lambda batch: model(*batch) + 0 * model.body.bias.sum(), [batch])
        train(lambda batch: plain(*batch) + 0 * plain.body.bias.sum(), [batch])
        assert_same(model, plain)
    for p, before in zip(model.heads[2].parameters(), never, strict=True):
        assert torch.equal(p, before)
    counts = {name: fields.get("optimizer.step") for block in blocks for name, fields in block.state().items()}
    if factory is not sgd:
        assert counts["heads.0.weight"] == counts["heads.1.weight"] == 6
        assert counts["heads.2.weight"] is None


def test_a_parameter_used_in_an_earlier_micro_batch_only_is_used() -> None:
    torch.manual_seed(2)
    model = Heads().double()
    plain, blocks, watch, train = pair_of(model, adamw, 1 << 20)
    for _ in range(3):
        x = torch.randn(4, 3, dtype=torch.float64)
        step(watch, blocks, lambda batch: model(*batch), [(x, [0]), (x, [1])])
        train(lambda batch: plain(*batch), [(x, [0]), (x, [1])])
        assert_same(model, plain)


def test_tied_parameters_are_one() -> None:
    torch.manual_seed(3)
    model = nn.ModuleDict({"embed": nn.Embedding(5, 3), "head": nn.Linear(3, 5, bias=False)}).double()
    model["head"].weight = model["embed"].weight
    plain, blocks, watch, train = pair_of(model, adamw, 1 << 20)
    assert sum(block.numel for block in blocks) == 16
    tokens = torch.tensor([0, 3, 3])
    for _ in range(3):
        ready = step(watch, blocks, lambda _: model["head"](model["embed"](tokens)).square().sum())
        train(lambda _: plain["head"](plain["embed"](tokens)).square().sum())
        assert ready == ["block-0"]
    assert model["head"].weight is model["embed"].weight
    assert_same(model, plain)


def test_any_dense_memory_layout_is_kept_and_trains_the_same() -> None:
    """Case D15: channels_last, transposed and expanded parameters."""
    torch.manual_seed(4)
    model = nn.ParameterDict(
        {
            "conv": nn.Parameter(torch.randn(4, 3, 2, 2).contiguous(memory_format=torch.channels_last)),
            "transposed": nn.Parameter(torch.randn(5, 4).t()),
            "expanded": nn.Parameter(torch.randn(1, 5).expand(4, 5)),
            "scalar": nn.Parameter(torch.randn(())),
            "empty": nn.Parameter(torch.randn(0, 5)),
        }
    ).double()
    plain = nn.ParameterDict({name: nn.Parameter(p.detach().clone().contiguous()) for name, p in model.items()})
    strides = {name: p.stride() for name, p in model.items()}
    blocks = blocks_of(model, adamw)
    watch, train = Watch(blocks), alone(plain, adamw)

    def loss(of: nn.ParameterDict, x: Tensor) -> Tensor:
        y = nn.functional.conv2d(x, of["conv"]).relu().sum((2, 3)) @ (of["transposed"] * of["expanded"].cos())
        return (y * of["scalar"]).square().sum() + of["empty"].sum()

    for _ in range(5):
        x = torch.randn(2, 3, 5, 5, dtype=torch.float64)
        step(watch, blocks, partial(loss, model), [x])
        train(partial(loss, plain), [x])
    for name, p in model.items():
        torch.testing.assert_close(p, plain[name], rtol=1e-12, atol=1e-12)
    assert [model[name].stride() for name in ("conv", "transposed")] == [strides[n] for n in ("conv", "transposed")]
    assert model["expanded"].is_contiguous()


def test_sixteen_bit_gradients_accumulate_in_float32() -> None:
    """256 gradients of 1/256 beside one of 1: bfloat16 would lose them all."""
    model = nn.ParameterDict({"w": nn.Parameter(torch.zeros(3, dtype=torch.bfloat16))})
    (block,) = blocks_of(model, sgd)
    watch = Watch([block])
    watch.begin()
    for k in range(257):
        if k == 256:
            watch.arm(lambda block: block.seal(1.0))
        (model["w"] * (1.0 if k == 0 else 2.0**-8)).sum().backward()
    watch.flush()
    assert block.wire.dtype == torch.float32 and block.x.dtype == torch.bfloat16
    assert block.g[:3].tolist() == [2.0] * 3
    assert model["w"].grad is None
    block.step()
    assert model["w"].tolist() == pytest.approx([-0.2] * 3, rel=2**-8)
    assert model["w"].dtype == torch.bfloat16


def test_dtypes_do_not_mix() -> None:
    """Defect T.7-13."""
    model = nn.ModuleDict({"a": nn.Linear(3, 3), "b": nn.Linear(3, 3, dtype=torch.bfloat16)})
    blocks = blocks_of(model, sgd)
    dtypes = {name: p.dtype for name, p in model.named_parameters()}
    watch = Watch(blocks)
    x = torch.randn(2, 3)
    step(watch, blocks, lambda x: model["b"](model["a"](x).bfloat16()).float().square().sum(), [x])
    assert {name: p.dtype for name, p in model.named_parameters()} == dtypes
    assert all(block.x.dtype == {"float32": torch.float32}.get(block.spec.dtype, torch.bfloat16) for block in blocks)


def test_sparse_embedding_gradients_are_accumulated_densely() -> None:
    """Case F7: a step that touches no row is an unused parameter, not an error inside backward."""
    torch.manual_seed(5)
    model = nn.ModuleDict({"embed": nn.Embedding(6, 3, sparse=True), "out": nn.Linear(3, 2)}).double()
    plain = copy.deepcopy(model)
    plain["embed"] = nn.Embedding(6, 3, _weight=next(plain["embed"].parameters()).detach().clone())
    blocks = blocks_of(model, adamw)
    watch, train = Watch(blocks), alone(plain, adamw)
    x = torch.randn(2, 3, dtype=torch.float64)

    def loss(of: nn.ModuleDict, tokens: list[int]) -> Tensor:
        return of["out"](of["embed"](torch.tensor(tokens)) if tokens else x).square().sum()

    for tokens in ([1, 1, 4], [], [2], [1]):
        step(watch, blocks, partial(loss, model), [tokens])
        train(partial(loss, plain), [tokens])
        assert_same(model, plain)


def test_zeroing_gradients_by_hand_loses_nothing() -> None:
    """Defect T.7-6: whatever the caller does to ``p.grad``, the gradient of the next backward pass is in the block."""
    torch.manual_seed(6)
    model = nn.Linear(3, 2).double()
    plain, blocks, watch, train = pair_of(model, sgd, 1 << 20)
    for _ in range(4):
        x = torch.randn(4, 3, dtype=torch.float64)
        model.zero_grad()
        step(watch, blocks, lambda x: model(x).square().sum(), [x])
        train(lambda x: plain(x).square().sum(), [x])
        assert_same(model, plain)


def test_a_gradient_with_a_graph_is_refused() -> None:
    model = nn.Linear(2, 1)
    blocks_of(model)
    with pytest.raises(UserError, match="create_graph"):
        model(torch.ones(2)).square().sum().backward(create_graph=True)


def test_writing_while_passes_may_read_is_a_race() -> None:
    """Lesson 4: autograd does not see writes through the block, so the block itself watches."""
    model = nn.Linear(2, 1)
    (block, _) = blocks = blocks_of(model)
    watch = Watch(blocks)
    watch.begin()
    with pytest.raises(Race, match="stepped"):
        block.step()
    model(torch.ones(2)).sum().backward()
    with torch.no_grad():
        block.x.add_(1.0)
    with pytest.raises(Race, match="written"):
        block.seal(1.0)


def test_wire_carries_gradient_weight_and_uses() -> None:
    model = nn.ParameterDict({"a": nn.Parameter(torch.ones(2)), "b": nn.Parameter(torch.ones(2))})
    (block,) = blocks_of(model)
    (3 * model["a"]).sum().backward()
    block.seal(0.75)
    assert block.weight() == 0.75
    assert block.wire[-3:].tolist() == [0.75, 0.0, 0.75]  # slices are in ready order: b, a
    assert block.square_norm() == pytest.approx(2 * (3 / 0.75) ** 2)
    assert block.wire_nbytes == block.wire.numel() * 4
    block.wire.mul_(2)  # as if another worker with the same gradient had been added
    block.step()
    assert model["a"].tolist() == pytest.approx([1 - 0.1 * 4.0] * 2)
    assert model["b"].tolist() == [1.0, 1.0]
    assert not block.wire.any()


def test_a_scale_of_zero_leaves_the_gradient_out() -> None:
    model = nn.Linear(2, 2, bias=False)
    (block,) = blocks_of(model, adamw)
    model(torch.full((2,), math.nan)).sum().backward()
    block.seal(1.0)
    assert not block.own_gradient_finite() and math.isnan(block.square_norm())
    base = torch.arange(block.numel, dtype=torch.float32)
    block.step(base, scale=0.0)
    assert torch.equal(block.x, base) and not block.wire.any()
    assert "optimizer.step" not in block.state()["weight"]


def test_a_worker_without_samples_changes_nothing() -> None:
    """Case D2: weight 0 is no gradient at all, not 0/0."""
    model = nn.Linear(2, 2)
    blocks = blocks_of(model, adamw)
    before = copy.deepcopy(model)
    model(torch.zeros(0, 2)).sum().backward()
    for block in blocks:
        block.seal(0.0)
        assert block.square_norm() == 0.0
        block.step()
    assert_same(model, before)


def test_the_norm_of_large_finite_gradients_is_finite() -> None:
    model = nn.Linear(4, 4, bias=False)
    (block,) = blocks_of(model)
    (model.weight * 1e25).sum().backward()
    block.seal(1.0)
    assert block.square_norm() == pytest.approx(16e50)


def test_padding_stays_zero() -> None:
    torch.manual_seed(7)
    model = nn.Linear(3, 3)
    blocks = blocks_of(model, adamw)
    watch = Watch(blocks)
    for _ in range(3):
        step(watch, blocks, lambda _: model(torch.ones(3)).square().sum())
    for block in blocks:
        padding = torch.ones(block.numel, dtype=torch.bool)
        for start, size in zip(block.layout.starts, block.layout.sizes, strict=True):
            padding[start : start + size] = False
        assert padding.any() and not block.x[padding].any()


def test_each_block_is_one_base_tensor() -> None:
    """Lesson 2: a version counter per block, which every kind of write advances."""
    model = Heads()
    blocks = blocks_of(model, sgd, bucket_bytes=1)
    assert len({block.x.untyped_storage().data_ptr() for block in blocks}) == len(blocks)
    for uses in ([0], [0, 1, 2]):
        versions = [block.x._version for block in blocks]
        watch = Watch(blocks)
        step(watch, blocks, lambda uses: model(torch.ones(1, 3), uses), [uses])
        moved = {b.spec.slices[0].name for b, v in zip(blocks, versions, strict=True) if b.x._version > v}
        expected = {f"heads.{k}.{kind}" for k in uses for kind in ("weight", "bias")} | {"body.weight", "body.bias"}
        assert moved == expected


def test_the_learning_rate_is_set_per_step() -> None:
    model = nn.ParameterDict({"w": nn.Parameter(torch.zeros(1))})
    (block,) = blocks_of(model, lambda params, decay: torch.optim.SGD(params, lr=9.0))
    for lr in (0.5, 0.25):
        block.lr = lr
        model["w"].sum().backward()
        block.seal(1.0)
        block.step()
    assert block.lr == 0.25
    assert model["w"].item() == -0.75


def test_a_slice_of_a_parameter_is_a_block_too() -> None:
    """A plan may give this peer rows 2 to 4 of a [6, 3] parameter; its model then holds those rows."""
    model = nn.ParameterDict({"w": nn.Parameter(torch.ones(3, 3))})
    piece = ParamSlice(name="w", shape=(6, 3), dtype="float32", dim=0, start=2, stop=5)
    spec = BlockSpec(name="b", slices=(piece,), decay=True, ready=1.0)
    (block,) = make_blocks(model, [spec], Owners(0, ("me",)), lambda flat, decay: sgd([flat], decay))
    assert list(block.state()) == ["w[0:2:5]"]


def test_a_plan_of_another_model_is_refused() -> None:
    """Case D9: the first name, shape or dtype that differs is named."""
    specs = specs_of(nn.Linear(3, 2))

    def build(model: nn.Module, specs: Sequence[BlockSpec] = specs) -> list[Block]:
        return make_blocks(model, specs, Owners(0, ("me",)), lambda flat, decay: sgd([flat], decay))

    with pytest.raises(UserError, match=r"weight.*\(2, 4\).*\(2, 3\)"):
        build(nn.Linear(4, 2))
    with pytest.raises(UserError, match=r"torch\.float64.*float32"):
        build(nn.Linear(3, 2, dtype=torch.float64))
    with pytest.raises(UserError, match=r"unknown parameter.*bias"):
        build(nn.Linear(3, 2, bias=False))
    with pytest.raises(UserError, match=r"no block holds.*0\.weight"):
        build(nn.Sequential(nn.Linear(3, 2)), ())
    with pytest.raises(UserError, match="more than one"):
        build(nn.Linear(3, 2), [*specs, specs[0]])


def test_an_optimizer_that_is_not_elementwise_is_refused_when_its_state_must_be_cut() -> None:
    class Odd(torch.optim.SGD):
        def step(self, closure: None = None) -> None:
            for p in self.param_groups[0]["params"]:
                self.state[p]["rows"] = torch.zeros(3)

    model = nn.Linear(2, 2, bias=False)
    (block,) = blocks_of(model, lambda params, decay: Odd(params))
    model(torch.ones(2)).sum().backward()
    block.seal(1.0)
    block.step()
    with pytest.raises(UserError, match=r"Odd keeps a state 'rows' of shape \(3,\)"):
        block.state()


def test_blocks_for_timing_have_sizes_but_no_values() -> None:
    spec = specs_of(Heads())[0]
    real = blocks_of(Heads())[0]
    block = Block.shape_only(spec, Owners(0, ("a", "b")))
    assert (block.numel, block.nbytes, block.wire_nbytes) == (real.numel, real.nbytes, real.wire_nbytes)
    assert block.x.device.type == block.wire.device.type == "meta"
    assert block.x.shape == real.x.shape and block.wire.shape == real.wire.shape
    assert block.layout == Layout.of(spec)
    assert block.update_bytes == 32.0 * block.numel
