"""How parameters become blocks."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from shoal.errors import UserError
from shoal.plan import BlockSpec, ParamSlice
from shoal.state.layout import ALIGNMENT_BYTES, DTYPES, Layout, local_shape, plan_blocks, slice_key
from state.building import has_decay, specs_of


class Mixed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.hidden = nn.Linear(4, 5)
        self.norm = nn.LayerNorm(5)
        self.half = nn.Linear(5, 3, dtype=torch.bfloat16)
        self.frozen = nn.Linear(3, 3)
        self.frozen.requires_grad_(False)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embed.weight


@settings(max_examples=40, deadline=None)
@given(
    dtype=st.sampled_from(sorted(DTYPES)),
    shapes=st.lists(st.lists(st.integers(0, 9), max_size=3).map(tuple), min_size=1, max_size=6),
)
def test_parameters_are_aligned_and_do_not_overlap(dtype: str, shapes: list[tuple[int, ...]]) -> None:
    slices = tuple(ParamSlice(name=f"p{k}", shape=shape, dtype=dtype) for k, shape in enumerate(shapes))
    layout = Layout.of(BlockSpec(name="b", slices=slices, decay=True, ready=1.0))
    ends = [0]
    for piece, start, size in zip(slices, layout.starts, layout.sizes, strict=True):
        assert size == piece.numel
        assert start * DTYPES[dtype].itemsize % ALIGNMENT_BYTES == 0
        assert ends[-1] <= start < ends[-1] + ALIGNMENT_BYTES
        ends.append(start + size)
    assert ends[-1] <= layout.numel < ends[-1] + ALIGNMENT_BYTES
    assert layout.numel * DTYPES[dtype].itemsize % ALIGNMENT_BYTES == 0


@pytest.mark.parametrize("bucket_bytes", [1, 40, 200, 1 << 20])
def test_every_trainable_parameter_is_in_exactly_one_block(bucket_bytes: int) -> None:
    """Frozen parameters are in none (case C17), tied ones in one."""
    model = Mixed()
    specs = specs_of(model, bucket_bytes=bucket_bytes)
    named = [piece.name for spec in specs for piece in spec.slices]
    assert sorted(named) == sorted(name for name, p in model.named_parameters() if p.requires_grad)
    assert "frozen.weight" not in named and "head.weight" not in named
    for spec in specs:
        assert len({piece.dtype for piece in spec.slices}) == 1
        nbytes = sum(piece.numel * DTYPES[piece.dtype].itemsize for piece in spec.slices)
        assert nbytes <= bucket_bytes or len(spec.slices) == 1


def test_weight_decay_is_for_matrices_only() -> None:
    """Defect T.7-1: a bias gets none, a weight does."""
    decay = {piece.name: spec.decay for spec in specs_of(Mixed()) for piece in spec.slices}
    assert decay == {
        "embed.weight": True,
        "hidden.weight": True,
        "hidden.bias": False,
        "norm.weight": False,
        "norm.bias": False,
        "half.weight": True,
        "half.bias": False,
    }


def test_blocks_come_in_the_order_in_which_they_become_ready() -> None:
    model = nn.Sequential(*(nn.Linear(4, 4, bias=False) for _ in range(6)))
    order = [f"{k}.weight" for k in (5, 3, 4, 0, 1, 2)]
    specs = plan_blocks(model, order, bucket_bytes=2 * 16 * 4, decay_of=has_decay)
    assert [[piece.name for piece in spec.slices] for spec in specs] == [order[:2], order[2:4], order[4:]]
    assert [spec.ready for spec in specs] == pytest.approx([1 / 3 + 2 / 3 * k / 3 for k in (1, 2, 3)])


def test_the_last_block_is_ready_at_the_end() -> None:
    for bucket_bytes in (1, 100, 1 << 20):
        ready = [spec.ready for spec in specs_of(Mixed(), bucket_bytes=bucket_bytes)]
        assert ready == sorted(ready)
        assert ready[0] > 1 / 3
        assert ready[-1] == pytest.approx(1.0)


def test_parameters_that_the_order_leaves_out_come_last() -> None:
    model = nn.ModuleDict({"a": nn.Linear(2, 2, bias=False), "b": nn.Linear(2, 2, bias=False)})
    specs = plan_blocks(model, ["b.weight"], bucket_bytes=16, decay_of=has_decay)
    assert [spec.slices[0].name for spec in specs] == ["b.weight", "a.weight"]


def test_a_model_without_trainable_parameters_has_no_blocks() -> None:
    """Case E16."""
    assert specs_of(nn.Linear(2, 2).requires_grad_(False)) == ()


def test_the_same_model_gives_the_same_plan() -> None:
    assert specs_of(Mixed(), bucket_bytes=64) == specs_of(Mixed(), bucket_bytes=64)


@pytest.mark.parametrize(
    ("model", "order", "word"),
    [
        (nn.Linear(2, 2), ["weigth"], "weigth"),
        (nn.LazyLinear(2), [], "no shape yet"),
        (nn.Linear(2, 2, dtype=torch.complex64), [], "complex64"),
    ],
)
def test_what_cannot_be_planned_is_named(model: nn.Module, order: list[str], word: str) -> None:
    with pytest.raises(UserError, match=word):
        plan_blocks(model, order, bucket_bytes=64, decay_of=has_decay)


def test_a_slice_is_keyed_by_parameter_and_cut() -> None:
    whole = ParamSlice(name="w", shape=(6, 4), dtype="float32")
    part = ParamSlice(name="w", shape=(6, 4), dtype="float32", dim=0, start=2, stop=5)
    assert (slice_key(whole), local_shape(whole)) == ("w", (6, 4))
    assert (slice_key(part), local_shape(part), part.numel) == ("w[0:2:5]", (3, 4), 12)
    assert slice_key(ParamSlice(name="w", shape=(6, 4), dtype="float32", stop=6)) == "w"
