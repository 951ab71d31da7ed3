"""Which samples belong to which step."""

from __future__ import annotations

import hashlib
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.data import order, share, step_samples
from shoal.plan import split


def reference_permutation(seed: int, epoch: int, samples: int) -> list[int]:
    """The documented order in plain Python integers."""
    mask = 2**64 - 1
    key = int.from_bytes(hashlib.sha256(f"{seed}/{epoch}".encode()).digest()[:8], "big")

    def hashed(i: int) -> int:
        x = (i * 0x9E3779B97F4A7C15 + key) & mask
        x = ((x ^ x >> 30) * 0xBF58476D1CE4E5B9) & mask
        x = ((x ^ x >> 27) * 0x94D049BB133111EB) & mask
        return x ^ x >> 31

    return sorted(range(samples), key=hashed)


@settings(deadline=None)
@given(seed=st.integers(0, 2**40), samples=st.integers(1, 60), size=st.integers(1, 150), steps=st.integers(1, 6))
def test_steps_are_a_chain_of_permutations(seed: int, samples: int, size: int, steps: int) -> None:
    stream = [i for step in range(steps) for i in step_samples(seed, step, samples=samples, size=size)]
    assert len(stream) == steps * size
    expected = (i for epoch in range(len(stream) // samples + 1) for i in reference_permutation(seed, epoch, samples))
    assert stream == list(islice(expected, len(stream)))


def test_workers_cover_every_epoch_without_overlap() -> None:
    """Case D6: 103 samples, 4 workers, 2 epochs."""
    peers = [f"w{n}" for n in range(4)]
    shares = split(8, peers)
    seen = {peer: [] for peer in peers}
    stream: list[int] = []
    for step in range(2 * 103 // 8 + 1):
        ids = step_samples(7, step, samples=103, size=8)
        for peer in peers:
            mine = share(ids, shares, peer)
            seen[peer] += mine
            stream += mine
    first, second = stream[:103], stream[103:206]
    assert sorted(first) == sorted(second) == list(range(103))
    assert first != second
    assert sum(len(ids) for ids in seen.values()) == len(stream)


@pytest.mark.parametrize(("workers", "expected"), [(1, [32]), (2, [16, 16]), (3, [11, 11, 10]), (4, [8] * 4)])
def test_the_batch_does_not_depend_on_the_number_of_workers(workers: int, expected: list[int]) -> None:
    """Case D13: the same samples per step for 1, 2, 3 and 4 workers; 3 take 11/11/10."""
    ids = step_samples(0, 5, samples=1000, size=32)
    shares = split(32, [f"w{n}" for n in range(workers)])
    parts = [share(ids, shares, peer) for peer in shares]
    assert [len(part) for part in parts] == expected
    assert [i for part in parts for i in part] == ids


def test_order_depends_on_seed_and_epoch() -> None:
    orders = {tuple(step_samples(seed, epoch, samples=20, size=20)) for seed in range(3) for epoch in range(3)}
    assert len(orders) == 9


def test_order_is_frozen_across_versions_and_machines() -> None:
    """Peers with other library versions must agree, so these figures never change."""
    assert step_samples(0, 0, samples=10, size=10) == FROZEN_0
    assert step_samples(123, 10**6, samples=10**5, size=4) == FROZEN_FAR


def test_a_far_step_is_not_replayed_from_the_start() -> None:
    order._permutation.cache_clear()
    step_samples(1, 10**6, samples=1009, size=32)
    assert order._permutation.cache_info().misses <= 2
    step_samples(1, 10**6, samples=1009, size=32)
    assert order._permutation.cache_info().misses <= 2


def test_callers_may_change_what_they_get() -> None:
    ids = step_samples(0, 0, samples=10, size=10)
    ids.sort()
    assert step_samples(0, 0, samples=10, size=10) == FROZEN_0


@pytest.mark.parametrize(("step", "samples", "size"), [(-1, 5, 5), (0, 0, 5), (0, 5, 0)])
def test_senseless_numbers_are_refused(step: int, samples: int, size: int) -> None:
    with pytest.raises(ValueError, match="out of range"):
        step_samples(0, step, samples=samples, size=size)


def test_shares_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="do not sum to 3"):
        share([1, 2, 3], {"a": 2}, "a")
    with pytest.raises(ValueError, match="'b' has no share"):
        share([1, 2], {"a": 2}, "b")


FROZEN_0 = [3, 9, 4, 1, 7, 0, 6, 2, 5, 8]
FROZEN_FAR = [3666, 83946, 81358, 36004]
