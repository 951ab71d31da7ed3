"""Which samples belong to which step: a pure function of (seed, step), the same on every peer and machine.

The global order is an endless chain of permutations of all samples, one per epoch, and step t takes the ids from
t·size on. Nothing depends on the number of workers: each takes its contiguous share of the step's ids.

A permutation sorts the ids by a keyed hash of them. Library shuffles may change from one version to the next, and two
peers with different versions would train on overlapping data without noticing; this one is integer arithmetic.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray


def step_samples(seed: int, step: int, *, samples: int, size: int) -> list[int]:
    """The ids of the global batch of `step`, each in [0, samples).

    The cost does not depend on `step`: the current epoch's permutation is kept.

    Args:
        samples: number of samples in the dataset, at least 1.
        size: samples per step over all workers, at least 1; may exceed `samples`.

    Raises:
        ValueError: `step` is negative, or `samples` or `size` is not positive.
    """
    if step < 0 or samples < 1 or size < 1:
        raise ValueError(f"step {step}, samples {samples} or size {size} is out of range")
    ids: list[int] = []
    start = step * size
    while len(ids) < size:
        epoch, at = divmod(start + len(ids), samples)
        ids += _permutation(seed, epoch, samples)[at : at + size - len(ids)].tolist()
    return ids


def share(ids: Sequence[int], shares: Mapping[str, int], peer: str) -> list[int]:
    """The contiguous part of a step's `ids` that `peer` takes.

    Args:
        shares: number of samples per peer, in the order in which peers take them; they sum to ``len(ids)``.

    Raises:
        ValueError: the shares do not sum to the number of ids.
    """
    if sum(shares.values()) != len(ids):
        raise ValueError(f"shares {dict(shares)} do not sum to {len(ids)} samples")
    start = 0
    for name, count in shares.items():
        if name == peer:
            return list(ids[start : start + count])
        start += count
    raise ValueError(f"{peer!r} has no share among {', '.join(shares)}")


@lru_cache(maxsize=2)
def _permutation(seed: int, epoch: int, samples: int) -> NDArray[np.int64]:
    key = int.from_bytes(hashlib.sha256(f"{seed}/{epoch}".encode()).digest()[:8], "big")
    order = np.argsort(_hash(np.arange(samples, dtype=np.uint64), key), kind="stable")
    order.setflags(write=False)
    return order


def _hash(ids: NDArray[np.uint64], key: int) -> NDArray[np.uint64]:
    """Output `id` of the SplitMix64 generator started at `key` (Steele et al. 2014): distinct for distinct ids."""
    x = ids * np.uint64(0x9E3779B97F4A7C15) + np.uint64(key)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
