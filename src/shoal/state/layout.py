"""How parameters become blocks, and where each parameter lies inside its block.

`plan_blocks` cuts a model's trainable parameters into blocks in the order in which their gradients become ready, so
that a block's traffic can start while the backward pass still works on the next one. `Layout` places the parameters of
one block in a flat vector; every parameter starts at a multiple of 64 bytes, which keeps vector instructions aligned.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from shoal.errors import UserError
from shoal.plan import BlockSpec, ParamSlice

ALIGNMENT_BYTES = 64
FORWARD_SHARE = 1 / 3
"""Share of a micro-batch's computation that is its forward pass: a backward pass costs twice the forward pass."""

DTYPES: dict[str, torch.dtype] = {
    "float64": torch.float64,
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}
"""What a block can hold, by the name that a plan writes."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the slices of a block lie: `starts[k]` and `sizes[k]` in elements, `numel` with the padding."""

    starts: tuple[int, ...]
    sizes: tuple[int, ...]
    numel: int

    @classmethod
    def of(cls, spec: BlockSpec) -> Layout:
        step = ALIGNMENT_BYTES // DTYPES[spec.dtype].itemsize
        sizes = tuple(piece.numel for piece in spec.slices)
        starts, at = [], 0
        for size in sizes:
            starts.append(at)
            at += -(-size // step) * step
        return cls(tuple(starts), sizes, at)


def gradient_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which gradients are accumulated and summed: float32 for 16-bit parameters, else their own."""
    return torch.float32 if dtype.itemsize == 2 else dtype


def local_shape(piece: ParamSlice) -> tuple[int, ...]:
    """The shape of the tensor that holds `piece` on its owner."""
    if not piece.shape or (piece.start == 0 and piece.stop is None):
        return piece.shape
    stop = piece.shape[piece.dim] if piece.stop is None else piece.stop
    return (*piece.shape[: piece.dim], stop - piece.start, *piece.shape[piece.dim + 1 :])


def slice_key(piece: ParamSlice) -> str:
    """The name under which a checkpoint keeps `piece`: the parameter's name, and the cut where it is not whole."""
    if local_shape(piece) == piece.shape:
        return piece.name
    return f"{piece.name}[{piece.dim}:{piece.start}:{'' if piece.stop is None else piece.stop}]"


def plan_blocks(
    model: nn.Module,
    ready_order: Sequence[str],
    *,
    bucket_bytes: int,
    decay_of: Callable[[str, Tensor], bool],
) -> tuple[BlockSpec, ...]:
    """Cut the trainable parameters of `model` into blocks of about `bucket_bytes`.

    A block holds parameters of one dtype that agree on weight decay. Walking through `ready_order`, a parameter joins
    the open block of its kind, or a new one if it would grow beyond `bucket_bytes` (a parameter larger than that has a
    block of its own). Blocks come in the order in which they become ready. Frozen parameters are in no block; tied ones
    are one parameter under their first name.

    `BlockSpec.ready` is the share of a micro-batch's computation after which the block is complete, taking FLOPs as
    proportional to elements: a third for the forward pass, then two thirds spread over the elements in ready order.

    Args:
        ready_order: parameter names, first gradient first. Trainable parameters that it leaves out come last.
        decay_of: does this parameter get weight decay?

    Raises:
        UserError: an unknown name in `ready_order`, an uninitialised parameter, or a dtype that cannot be trained.
    """
    trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
    order = _complete_order(trainable, ready_order)
    dtypes = {name: _dtype_name(name, trainable[name]) for name in order}
    total = sum(trainable[name].numel() for name in order) or 1
    open_: dict[tuple[bool, str], _Bucket] = {}
    buckets: list[_Bucket] = []
    elements = 0
    for name in order:
        p = trainable[name]
        kind = (bool(decay_of(name, p)), dtypes[name])
        nbytes = p.numel() * p.element_size()
        bucket = open_.get(kind)
        if bucket is None or bucket.nbytes + nbytes > bucket_bytes:
            bucket = open_[kind] = _Bucket(*kind)
            buckets.append(bucket)
        elements += p.numel()
        bucket.add(ParamSlice(name=name, shape=tuple(p.shape), dtype=kind[1]), nbytes, elements)
    buckets.sort(key=lambda bucket: bucket.elements)  # stable: equal only for parameters without elements
    width = len(str(len(buckets)))
    return tuple(
        BlockSpec(
            name=f"block-{n:0{width}d}",
            slices=tuple(bucket.slices),
            decay=bucket.decay,
            ready=FORWARD_SHARE + (1 - FORWARD_SHARE) * (bucket.elements / total),
        )
        for n, bucket in enumerate(buckets)
    )


class _Bucket:
    """A block while it is being filled. `elements` counts all elements that are ready when its last parameter is."""

    def __init__(self, decay: bool, dtype: str) -> None:
        self.decay, self.dtype = decay, dtype
        self.slices: list[ParamSlice] = []
        self.nbytes = self.elements = 0

    def add(self, piece: ParamSlice, nbytes: int, elements: int) -> None:
        self.slices.append(piece)
        self.nbytes += nbytes
        self.elements = elements


def _complete_order(trainable: dict[str, nn.Parameter], ready_order: Sequence[str]) -> list[str]:
    order = list(dict.fromkeys(ready_order))
    for name in order:
        if name not in trainable:
            raise UserError(
                "no such trainable parameter", key="ready_order", value=name, mend="use the names of named_parameters()"
            )
    known = set(order)
    return order + [name for name in trainable if name not in known]


def _dtype_name(name: str, p: nn.Parameter) -> str:
    if is_lazy(p):
        raise UserError(
            f"parameter {name!r} has no shape yet", key="model.factory", mend="run one forward pass in the factory"
        )
    text = str(p.dtype).removeprefix("torch.")
    if text not in DTYPES:
        raise UserError(
            f"parameter {name!r} is {text}, which cannot be trained",
            key="model.factory",
            mend=f"use {', '.join(DTYPES)}",
        )
    return text
