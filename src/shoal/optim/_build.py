"""Make the optimizer that a job names, and refuse what would be wrong on flat vectors."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError
from torch import nn, optim

from shoal import registry
from shoal.errors import UserError
from shoal.schema import nearest

NOT_ELEMENTWISE = {
    "Adafactor": "it factors the second moment over the rows and columns of matrices",
    "LAMB": "it scales each layer by its own norm",
    "LARS": "it scales each layer by its own norm",
    "LBFGS": "it evaluates the loss several times per step and joins all parameters in inner products",
    "Muon": "it orthogonalises matrices",
    "NovoGrad": "it keeps one second moment per layer",
    "SOAP": "it preconditions the rows and columns of matrices",
    "Shampoo": "it preconditions the rows and columns of matrices",
    "SparseAdam": "it takes sparse gradients, and blocks are dense",
}
"""Optimizers whose step for one element depends on others, or on the shapes that a flat vector has lost."""


def build(
    name: str, params: Sequence[nn.Parameter], *, lr: float, weight_decay: float, options: Mapping[str, Any]
) -> optim.Optimizer:
    """The optimizer `name` over `params`, usually one flat vector.

    Args:
        name: a file of this room (``"accum-adamw"``) or ``"package.module:name"``. The module of the latter may have an
            ``Options`` model and is then called as our own strategies are; otherwise `options` are passed on as keyword
            arguments, as `torch.optim` classes want them.
        lr: the learning rate of the first step; write the later ones into ``param_groups``.
        options: the optimizer's own part of the job's ``[optimizer]`` table.

    Raises:
        UserError: unknown name or option, a value that the optimizer refuses, or an optimizer that is not elementwise.
    """
    make = registry.strategy("optim", name)
    _refuse_shaped(name, make)
    model = getattr(registry.load("optim", name), "Options", None)
    if model is not None:
        made = make(params, lr=lr, weight_decay=weight_decay, options=_validated(model, options))
    else:
        made = _as_torch_does(name, make, params, lr, weight_decay, options)
    if not isinstance(made, optim.Optimizer):
        problem = f"it made a {type(made).__name__}, not a torch.optim.Optimizer"
        raise UserError(problem, key="optimizer.name", value=name)
    return made


def _as_torch_does(
    name: str,
    make: Callable[..., Any],
    params: Sequence[nn.Parameter],
    lr: float,
    weight_decay: float,
    options: Mapping[str, Any],
) -> Any:
    known = _keywords(make)
    if known is not None:
        if weight_decay and "weight_decay" not in known:
            raise UserError(
                f"{name} has no weight decay", key="optimizer.weight_decay", value=weight_decay, mend="set 0"
            )
        for key in sorted(options.keys() - known):
            raise _unknown(key, options[key], known - {"params", "lr", "weight_decay"})
    decay = {"weight_decay": weight_decay} if known is None or "weight_decay" in known else {}
    try:
        return make(params, lr=lr, **decay, **options)
    except (TypeError, ValueError) as error:
        raise UserError(f"{name} refuses its options: {error}", key="optimizer", value=dict(options)) from error


def _refuse_shaped(name: str, make: Any) -> None:
    reasons = {known.lower(): reason for known, reason in NOT_ELEMENTWISE.items()}
    for cls in inspect.getmro(make) if inspect.isclass(make) else ():
        if reason := reasons.get(cls.__name__.lower()):
            raise UserError(
                f"{cls.__name__} is not elementwise ({reason}), but parameters are updated as flat vectors",
                key="optimizer.name",
                value=name,
                mend="choose an elementwise optimizer such as 'adamw' or 'torch.optim:RMSprop'",
            )


def _keywords(make: Callable[..., Any]) -> set[str] | None:
    """The keywords that `make` takes; None if it takes any."""
    parameters = inspect.signature(make).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return None
    return {p.name for p in parameters if p.kind is not p.VAR_POSITIONAL}


def _validated(model: type[BaseModel], options: Mapping[str, Any]) -> BaseModel:
    try:
        return model.model_validate(dict(options))
    except ValidationError as errors:
        first = errors.errors(include_url=False)[0]
        key = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            raise _unknown(key, first["input"], model.model_fields) from errors
        value = first["input"] if first["loc"] else dict(options)
        full = f"optimizer.{key}" if key else "optimizer"
        raise UserError(first["msg"].removeprefix("Value error, "), key=full, value=value) from errors


def _unknown(key: str, value: Any, known: Iterable[str]) -> UserError:
    return UserError("no such option", key=f"optimizer.{key}", value=value, mend=nearest(key, sorted(known)))
