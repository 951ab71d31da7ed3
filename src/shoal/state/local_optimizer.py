"""The optimizer of one block: over the flat vector, and over single parameters once one of them must be left alone.

A block steps as one vector, which is what makes updates cheap. When a parameter had no gradient in a step, an optimizer
over the whole vector would decay it and move it by its momentum, so from that step on the optimizer sees one tensor per
parameter, each with its own state and step count, exactly as it would in an ordinary training loop. For elementwise
optimizers the two give the same values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from shoal.errors import UserError
from shoal.state.layout import Layout

OptimizerFactory = Callable[[nn.Parameter], torch.optim.Optimizer]
"""Builds the optimizer of one flat vector."""

Value = Tensor | int | float
"""One entry of an optimizer's state: a vector of the parameter's length, a 0-dimensional tensor, or a number."""


class LocalOptimizer:
    """An elementwise `torch.optim.Optimizer` over the flat vector `x`, whose parameters lie as `layout` says.

    Raises:
        UserError: the factory's optimizer does not hold exactly the parameter that it was given.
    """

    def __init__(self, x: Tensor, layout: Layout, factory: OptimizerFactory) -> None:
        self._x, self._layout = x, layout
        self._flat = nn.Parameter(x)  # shares x's memory and version counter
        self._parts: list[nn.Parameter] | None = None
        self._optimizer = factory(self._flat)
        held = [p for group in self._optimizer.param_groups for p in group["params"]]
        if len(held) != 1 or held[0] is not self._flat:
            raise UserError(
                f"{type(self._optimizer).__name__} must hold the one parameter it was given",
                key="optimizer.name",
                mend="use an elementwise optimizer",
            )

    @property
    def lr(self) -> float:
        return float(self._group["lr"])

    @lr.setter
    def lr(self, lr: float) -> None:
        self._group["lr"] = lr

    def step(self, g: Tensor, used: Sequence[bool]) -> None:
        """One step with gradient `g` [numel]; parameters with ``used[k]`` false keep their value and state."""
        g = g.to(self._x.dtype)
        if self._parts is None and all(used):
            self._flat.grad = g
            self._optimizer.step()
            self._flat.grad = None
            return
        parts = self._split()
        for part, piece, wanted in zip(parts, self._pieces(g), used, strict=True):
            part.grad = piece if wanted else None
        self._optimizer.step()
        for part in parts:
            part.grad = None

    def export(self) -> list[dict[str, Value]]:
        """The state of each parameter: vectors in the parameter's memory order, scalars. Tensors are not copied."""
        if self._parts is None:
            return self._cut(self._optimizer.state.get(self._flat, {}))
        return [
            {key: value for key, value in self._optimizer.state.get(part, {}).items() if value is not None}
            for part in self._parts
        ]

    def restore(self, states: Sequence[Mapping[str, Value]]) -> None:
        """Take over what `export` gave, from any layout. Vectors are copied; an empty state is a fresh start."""
        self._optimizer.state.clear()
        if _alike(states):
            self._parts = None
            self._group["params"] = [self._flat]
            if states and states[0]:
                self._optimizer.state[self._flat] = self._join(states)
            return
        for part, state in zip(self._split(), states, strict=True):
            if state:
                self._optimizer.state[part] = {key: self._place(value) for key, value in state.items()}

    @property
    def _group(self) -> dict[str, Any]:
        return self._optimizer.param_groups[0]

    def _pieces(self, vector: Tensor) -> list[Tensor]:
        return [
            vector[start : start + size] for start, size in zip(self._layout.starts, self._layout.sizes, strict=True)
        ]

    def _split(self) -> list[nn.Parameter]:
        """One tensor per parameter from now on, with the state that the whole had."""
        if self._parts is None:
            states = self._cut(self._optimizer.state.pop(self._flat, {}))
            self._parts = [nn.Parameter(piece) for piece in self._pieces(self._x)]
            self._group["params"] = list(self._parts)
            for part, state in zip(self._parts, states, strict=True):
                if state:
                    self._optimizer.state[part] = {
                        key: value.clone() if isinstance(value, Tensor) else value for key, value in state.items()
                    }
        return self._parts

    def _cut(self, state: Mapping[str, Value | None]) -> list[dict[str, Value]]:
        """The state of the whole vector as one state per parameter."""
        out: list[dict[str, Value]] = [{} for _ in self._layout.starts]
        for key, value in state.items():
            if value is None:
                continue
            if isinstance(value, Tensor) and value.shape == self._x.shape:
                for one, piece in zip(out, self._pieces(value), strict=True):
                    one[key] = piece
            elif isinstance(value, int | float) or value.ndim == 0:
                for one in out:
                    one[key] = value
            else:
                raise UserError(
                    f"{type(self._optimizer).__name__} keeps a state {key!r} of shape {tuple(value.shape)}",
                    key="optimizer.name",
                    mend="use an elementwise optimizer: its state must have the shape of the parameters",
                )
        return out

    def _join(self, states: Sequence[Mapping[str, Value]]) -> dict[str, Value]:
        """One state for the whole vector from states that are alike. The padding is zero, as it began."""
        out: dict[str, Value] = {}
        for key, first in states[0].items():
            if isinstance(first, Tensor) and first.ndim:
                whole = torch.zeros(self._x.shape, dtype=first.dtype, device=self._x.device)
                for piece, state in zip(self._pieces(whole), states, strict=True):
                    piece.copy_(_tensor(state[key]))
                out[key] = whole
            else:
                out[key] = self._place(first)
        return out

    def _place(self, value: Value) -> Value:
        """A copy of `value` where the optimizer wants it: step counts stay on the host unless a kernel reads them."""
        if not isinstance(value, Tensor):
            return value
        in_kernel = value.ndim or self._group.get("fused") or self._group.get("capturable")
        return value.to(self._x.device, copy=True) if in_kernel else value.clone()


def _alike(states: Sequence[Mapping[str, Value]]) -> bool:
    """Can one optimizer over the whole vector stand for these: the same keys and the same scalars?"""
    return all(
        state.keys() == states[0].keys() and all(_same_scalar(value, states[0][key]) for key, value in state.items())
        for state in states
    )


def _same_scalar(a: Value, b: Value) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.dtype == b.dtype and a.ndim == b.ndim and (a.ndim > 0 or bool(a == b))
    return not isinstance(a, Tensor) and not isinstance(b, Tensor) and a == b


def _tensor(value: Value) -> Tensor:
    assert isinstance(value, Tensor)
    return value
