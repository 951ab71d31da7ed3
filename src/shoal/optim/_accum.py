"""The step that AccumAdam and AccumAdamW share.

Every step moves the parameters with the fresh gradient, but the moments that are kept see only the mean gradient of
each window of s steps, as if the batch were s times larger. With the accumulator a, step t and k = ceil(t/s):

    a += g/s
    m~ = b1*m + (1-b1)*g;   v~ = b2*v + (1-b2)*g²              for this step only
    x -= lr * (m~/(1-b1^k)) / (sqrt(v~/(1-b2^k)) + eps)
    every s-th step:  m = b1*m + (1-b1)*a;   v = b2*v + (1-b2)*a²;   a = 0

Source: Wang, Zhang, Wu and Johansson, From Promise to Practice: Realizing High-performance Decentralized Training
(ICLR 2025), appendix C, with beta2 in the update of v.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar
from weakref import WeakValueDictionary

import torch
from pydantic import Field
from torch import Tensor

from shoal.errors import UserError
from shoal.optim._common import Decay, Epsilon, OptimOptions

VECTORS = ("exp_avg", "exp_avg_sq", "accum")

CHUNK = 2**17
"""Elements updated at a time on a CPU, so that a step's temporaries stay in its cache. Measured against one pass over
the whole vector, one thread: 0.4 of the time for 10⁶ and 3·10⁶ elements, the same below 10⁵."""


class AccumOptions(OptimOptions):
    """`window` is s, the steps over which the gradient is averaged for the moments; raise it with the workers."""

    betas: tuple[Decay, Decay] = (0.9, 0.999)
    eps: Epsilon = 1e-8
    window: int = Field(4, ge=1)


class AccumOptimizer(torch.optim.Optimizer):
    """Base of AccumAdam and AccumAdamW.

    State per parameter: the vectors ``exp_avg`` (m), ``exp_avg_sq`` (v) and ``accum`` (a) in the parameter's shape and
    dtype, but at least float32 (in bfloat16 a small change of v would be lost); ``step`` (t), an int64 scalar; and
    ``window``, the s that they belong to. State that was put here by a resume is examined before it is used.

    Args:
        params: parameters or parameter groups, as of any `torch.optim.Optimizer`.
        betas: decay rates of m and v.
        eps: added to the root of v.
        weight_decay: see `AccumAdam`, `AccumAdamW`.
        window: s, a whole number of steps; 1 gives Adam or AdamW.
    """

    decoupled: ClassVar[bool]

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: Sequence[float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        window: int = 4,
    ) -> None:
        AccumOptions(betas=(betas[0], betas[1]), eps=eps, window=window)  # a ValueError, as of torch's own
        defaults = {"lr": lr, "betas": tuple(betas), "eps": eps, "weight_decay": weight_decay, "window": window}
        super().__init__(params, defaults)
        self._trusted = _no_counters()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._trusted = _no_counters()

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step with the gradients that are there; a parameter without one is left alone."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self._update(p, p.grad, self._state(p, group["window"]), group)
        return loss

    def _state(self, p: Tensor, window: int) -> dict[str, Any]:
        state = self.state[p]
        if not state:
            if not p.is_floating_point():
                raise TypeError(f"{type(self).__name__} updates real parameters only, not {p.dtype}")
            state["step"] = torch.tensor(0, dtype=torch.int64)
            state["window"] = window
            for name in VECTORS:
                state[name] = torch.zeros_like(p, dtype=_state_dtype(p))
        elif self._trusted.get(id(state.get("step"))) is None:
            _examine(p, window, state)
        self._trusted[id(state["step"])] = state["step"]
        return state

    def _update(self, p: Tensor, grad: Tensor, state: dict[str, Any], group: Mapping[str, Any]) -> None:
        lr, (beta1, beta2), eps, window = group["lr"], group["betas"], group["eps"], group["window"]
        decay = group["weight_decay"]
        state["step"] += 1
        t = int(state["step"])
        k = -(-t // window)
        # lr * (m~/c1) / (sqrt(v~/c2) + eps), written with one division less: c2 goes to the scalars.
        root = math.sqrt(1 - beta2**k)
        size = lr * root / (1 - beta1**k)
        for x, g, m, v, a in _chunks(p, grad, *(state[name] for name in VECTORS)):
            y, g = x.to(m.dtype), g.to(m.dtype)  # themselves, but for half precision
            if decay and self.decoupled:
                y.mul_(1 - lr * decay)
            elif decay:
                g = g.add(y, alpha=decay)
            a.add_(g, alpha=1 / window)
            denominator = v.mul(beta2).addcmul_(g, g, value=1 - beta2).sqrt_().add_(eps * root)
            y.addcdiv_(m.lerp(g, 1 - beta1), denominator, value=-size)
            if y is not x:
                x.copy_(y)
            if t % window == 0:
                m.lerp_(a, 1 - beta1)
                v.mul_(beta2).addcmul_(a, a, value=1 - beta2)
                a.zero_()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue where another optimizer stood, in the middle of a window too; to the bit. The window stays ours.

        Raises:
            UserError: the state belongs to another window or other shapes, or cannot be that of such an optimizer.
        """
        saved = [(p, window, state) for p, window, state in self._pairs(state_dict) if state]
        for p, window, state in saved:
            _examine(p, window, state)
        windows = [group["window"] for group in self.param_groups]
        super().load_state_dict(state_dict)
        for group, window in zip(self.param_groups, windows, strict=True):
            group["window"] = window
        for p, _, state in saved:  # torch has cast it to the parameter's dtype, and shares its tensors with the source
            vectors = {name: state[name].to(p.device, _state_dtype(p), copy=True) for name in VECTORS}
            self.state[p] = {"step": state["step"].clone(), "window": state["window"], **vectors}

    def _pairs(self, state_dict: Mapping[str, Any]) -> Iterator[tuple[Tensor, int, Mapping[str, Any]]]:
        """(parameter, its window, its saved state) in order; torch itself refuses unequal numbers."""
        for group, saved in zip(self.param_groups, state_dict["param_groups"], strict=False):
            for p, index in zip(group["params"], saved["params"], strict=False):
                yield p, group["window"], state_dict["state"].get(index, {})


def _no_counters() -> WeakValueDictionary[int, Tensor]:
    """The step counters of states that were made or examined here, by identity, for as long as they live."""
    return WeakValueDictionary()


def _chunks(p: Tensor, *others: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """The same pieces of all tensors; their values do not depend on where they are cut."""
    tensors = (p, *others)
    if p.device.type != "cpu" or p.numel() <= CHUNK or not all(t.is_contiguous() for t in tensors):
        yield tensors
    else:
        yield from zip(*(t.view(-1).split(CHUNK) for t in tensors), strict=True)


def _state_dtype(p: Tensor) -> torch.dtype:
    return torch.promote_types(p.dtype, torch.float32)


def _examine(p: Tensor, window: int, state: Mapping[str, Any]) -> None:
    """Refuse a state that such an optimizer cannot have left.

    Raises:
        UserError: says what is wrong with it.
    """
    if missing := [name for name in ("step", "window", *VECTORS) if name not in state]:
        raise _unusable(f"has no {', '.join(missing)}")
    if state["window"] != window:
        raise UserError(
            f"the saved optimizer averages over windows of {state['window']} steps",
            key="optimizer.window",
            value=window,
            mend=f"resume with window = {state['window']}, or start a new run",
        )
    for name in VECTORS:
        if state[name].shape != p.shape:
            raise _unusable(f"has {name} of shape {tuple(state[name].shape)} for a parameter of {tuple(p.shape)}")
    if not isinstance(state["step"], Tensor):
        raise _unusable(f"counts its steps in a {type(state['step']).__name__}")
    t = int(state["step"])
    if t < 0:
        raise _unusable(f"is at step {t}")
    if not bool((state["exp_avg_sq"] >= 0).all()):
        raise _unusable("has a second moment that is negative or NaN")
    if t % window == 0 and bool(state["accum"].any()):
        raise _unusable(f"has gradients in its accumulator at step {t}, the end of a window of {window}")


def _unusable(why: str) -> UserError:
    return UserError(f"the saved optimizer state {why}", key="optimizer", mend="resume from another checkpoint")
