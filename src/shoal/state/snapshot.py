"""From a model and its blocks to the named tensors of a checkpoint, and back.

Keys are ``"FIELD/NAME"`` with the parameter's or buffer's own name: ``"model/head.weight"``,
``"optimizer.exp_avg/head.weight"``. They know nothing of blocks, so a checkpoint can be read with another bucket size
or memory format, and ``model/`` is a plain state dict.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from shoal.errors import UserError
from shoal.state.block import Block
from shoal.state.checkpoint import Scalar
from shoal.state.layout import slice_key
from shoal.state.local_optimizer import Value

MODEL = "model"


def capture(model: nn.Module, blocks: Sequence[Block]) -> tuple[dict[str, Tensor], dict[str, int | float]]:
    """Parameters (frozen ones too), persistent buffers, and the optimizer's and mixing's state, as tensors and scalars.

    Tensors are views of live ones: write them before training goes on.

    Raises:
        UserError: a module has extra state that a checkpoint cannot hold.
    """
    tensors: dict[str, Tensor] = {
        f"{MODEL}/{name}": tensor.detach() for name, tensor in _outside(model, blocks).items()
    }
    scalars: dict[str, int | float] = {}
    for block in blocks:
        for name, fields in block.state().items():
            for field, value in fields.items():
                if isinstance(value, Tensor):
                    tensors[f"{field}/{name}"] = value.detach()
                else:
                    scalars[f"{field}/{name}"] = value
    return tensors, scalars


def restore(
    model: nn.Module, blocks: Sequence[Block], tensors: Mapping[str, Tensor], scalars: Mapping[str, Scalar]
) -> None:
    """Take over what `capture` gave. Names, shapes and dtypes are compared before anything is changed.

    Raises:
        UserError: it is of another model: the first name, shape or dtype that differs; or a key that nobody reads.
    """
    outside = _outside(model, blocks)
    inside = {slice_key(piece) for block in blocks for piece in block.spec.slices}
    _check_model(_model_tensors(outside, blocks), tensors)
    fields: dict[str, dict[str, Value]] = {name: {} for name in inside}
    for key, value in (*tensors.items(), *scalars.items()):
        field, _, name = key.partition("/")
        if name in inside:
            fields[name][field] = value
        elif field != MODEL:
            raise UserError("checkpoint: nobody reads this key", value=key, mend="resume with the job that was saved")
    with torch.no_grad():
        for name, tensor in outside.items():
            tensor.copy_(tensors[f"{MODEL}/{name}"])
    for block in blocks:
        block.load({slice_key(piece): fields[slice_key(piece)] for piece in block.spec.slices})


def _model_tensors(outside: Mapping[str, Tensor], blocks: Iterable[Block]) -> dict[str, Tensor]:
    inside = ((name, fields[MODEL]) for block in blocks for name, fields in block.state().items())
    return {**outside, **{name: value for name, value in inside if isinstance(value, Tensor)}}


def _outside(model: nn.Module, blocks: Sequence[Block]) -> dict[str, Tensor]:
    """Parameters in no block (frozen ones) and persistent buffers, each under its first name."""
    inside = {piece.name for block in blocks for piece in block.spec.slices}
    kept = model.state_dict(keep_vars=True)
    parameters, buffers = dict(model.named_parameters()), dict(model.named_buffers())
    everything = {
        **dict(model.named_parameters(remove_duplicate=False)),
        **dict(model.named_buffers(remove_duplicate=False)),
    }
    for name in kept:
        if name not in everything:
            raise UserError("this module has extra state that a checkpoint cannot hold", value=name)
    return {
        **{name: p for name, p in parameters.items() if name not in inside},
        **{name: buffer for name, buffer in buffers.items() if name in kept},
    }


def _check_model(mine: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> None:
    """The same names, shapes and dtypes; the first difference in order of names is reported."""
    prefix = f"{MODEL}/"
    saved = {key.removeprefix(prefix): tensor for key, tensor in tensors.items() if key.startswith(prefix)}
    for name in sorted(mine.keys() | saved.keys()):
        here, there = (_describe(side.get(name)) for side in (mine, saved))
        if here != there:
            raise UserError(
                f"checkpoint: another model: {name} is {there} in the checkpoint and {here} here",
                mend="resume with the model that was saved",
            )


def _describe(tensor: Tensor | None) -> str:
    return "absent" if tensor is None else f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"
