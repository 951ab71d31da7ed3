"""Seeds derived from keys, the same in every world and process, and computations that draw from the default generators.

Python's `hash` is salted per process, so keys are encoded and hashed here (BLAKE2b). A key holds ints, strings and
tuples of them.
"""

from __future__ import annotations

from collections.abc import Hashable
from hashlib import blake2b
from types import TracebackType

import torch

from shoal.world import Key


def derive(seed: int, *key: Hashable) -> int:
    """A 63-bit seed that depends on `seed` and on every element of `key`, and on how they are nested.

    Raises:
        TypeError: the key holds something else than ints, strings and tuples of them.
    """
    return int.from_bytes(blake2b(_encode((seed, *key)), digest_size=8).digest(), "big") >> 1


def generator(seed: int, *key: Hashable) -> torch.Generator:
    """A CPU generator seeded with `derive(seed, *key)`."""
    return torch.Generator().manual_seed(derive(seed, *key))


def _encode(value: Hashable) -> bytes:
    """Prefix-free, so that different keys never have the same bytes."""
    if isinstance(value, int):
        text = b"%d" % value
        return b"i%d:%b" % (len(text), text)
    if isinstance(value, str):
        text = value.encode()
        return b"s%d:%b" % (len(text), text)
    if isinstance(value, tuple):
        return b"t%d:%b" % (len(value), b"".join(map(_encode, value)))
    raise TypeError(f"a seed's key holds ints, strings and tuples of them, not {value!r}")


class seeded:  # noqa: N801 - used like a function
    """``with seeded(seed, key, device):`` seeds the default generators of CPU and `device`, then restores them.

    An empty key leaves them alone. `torch.manual_seed` visits every backend and takes a hundred times longer.
    """

    __slots__ = ("_generators", "_seed", "_states")

    def __init__(self, seed: int, key: Key, device: torch.device) -> None:
        self._states: list[torch.Tensor] = []
        self._generators = _generators(device) if key else []
        self._seed = derive(seed, *key) if key else 0

    def __enter__(self) -> None:
        for gen in self._generators:
            self._states.append(gen.get_state())
            gen.manual_seed(self._seed)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for gen, state in zip(self._generators, self._states, strict=True):
            gen.set_state(state)


def _generators(device: torch.device) -> list[torch.Generator]:
    if device.type == "cuda":
        torch.cuda.init()
        index = torch.cuda.current_device() if device.index is None else device.index
        return [torch.default_generator, torch.cuda.default_generators[index]]
    return [torch.default_generator]
