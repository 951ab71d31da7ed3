"""Any ``nn.Module`` from the name of its factory, with the same weights on every peer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from shoal.errors import UserError
from shoal.imports import call, resolve

Loss = Callable[[nn.Module, tuple[Tensor, ...]], tuple[Tensor, Any]]


def build(
    factory: str,
    args: Mapping[str, Any],
    *,
    seed: int,
    context: Mapping[str, Any] | None = None,
    base: Path | None = None,
) -> nn.Module:
    """Call the factory, with torch's default CPU generator seeded by `seed` and restored afterwards.

    Peers that build with the same arguments hold the same weights to the bit, provided that the factory draws its
    initial values from that generator (everything in `torch.nn.init` does, for CPU tensors).

    Args:
        factory: ``package.module:callable``, a class or a function.
        args: keyword arguments, the job's ``[model.args]``.
        context: what else is known (``vocab``, ``sequence``); handed over where the factory has a parameter of that
            name and `args` does not set it.
        base: the job's folder, where modules of one's own are looked for first.

    Raises:
        UserError: the factory cannot be found or called with `args`, or returns something else than a module.
    """
    make = resolve(factory, key="model.factory", base=base)
    with _seeded(seed):
        model = call(make, args, key="model.args", context=context or {})
    if not isinstance(model, nn.Module):
        raise UserError(
            f"the factory returned a {type(model).__name__}",
            key="model.factory",
            value=factory,
            mend="return a torch.nn.Module",
        )
    for name, parameter in model.named_parameters():
        if nn.parameter.is_lazy(parameter):
            raise UserError(
                f"parameter {name!r} has no shape before the first batch",
                key="model.factory",
                value=factory,
                mend="use layers with explicit sizes instead of lazy ones",
            )
    return model


def load_loss(name: str, base: Path | None = None) -> Loss:
    """The loss ``package.module:callable``; see `shoal.models` for what it must return.

    Raises:
        UserError: there is no such loss.
    """
    return resolve(name, key="model.loss", base=base)


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seeds the default CPU generator alone: `torch.manual_seed` would reseed accelerators too and not restore them."""
    state = torch.default_generator.get_state()
    torch.default_generator.manual_seed(seed)
    try:
        yield
    finally:
        torch.default_generator.set_state(state)
