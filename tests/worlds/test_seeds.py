"""Seeds: the same in every process, different for different keys; and default generators that are left as they were."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from shoal.worlds.seeds import derive, generator, seeded

ATOMS = st.one_of(st.integers(-5, 5), st.sampled_from(["", "1", "a", "ab", "i1:1"]))
KEYS = st.lists(
    st.recursive(ATOMS, lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=5), max_size=4
).map(tuple)
CPU = torch.device("cpu")


@given(KEYS, KEYS)
def test_different_keys_give_different_seeds(a: tuple[object, ...], b: tuple[object, ...]) -> None:
    assert (derive(7, *a) == derive(7, *b)) == (a == b)


@given(st.integers(0, 2**64), KEYS)
def test_a_seed_fits_every_generator(seed: int, key: tuple[object, ...]) -> None:
    assert 0 <= derive(seed, *key) < 2**63
    generator(seed, *key)


def test_another_process_derives_the_same_seed() -> None:
    """Python's own hash of a string differs from process to process."""
    code = "from shoal.worlds.seeds import derive; print(derive(3, 'forward', 5, ('block', 1)))"
    got = {
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    }
    assert got == {f"{derive(3, 'forward', 5, ('block', 1))}\n"}


def test_a_float_in_a_key_is_refused() -> None:
    with pytest.raises(TypeError, match=r"0\.5"):
        derive(0, "x", 0.5)


def test_equal_keys_seed_equally_and_everything_is_restored() -> None:
    before = torch.get_rng_state()
    draws = []
    for key in (("a", 1), ("a", 1), ("a", 2)):
        with seeded(5, key, CPU):
            draws.append(torch.rand(3))
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])
    assert torch.equal(torch.get_rng_state(), before)


def test_state_is_restored_after_an_error() -> None:
    before = torch.get_rng_state()
    with suppress(ZeroDivisionError), seeded(5, ("a",), CPU):
        torch.rand(3)
        raise ZeroDivisionError
    assert torch.equal(torch.get_rng_state(), before)


def test_an_empty_key_leaves_the_generators_alone() -> None:
    before = torch.get_rng_state()
    with seeded(5, (), CPU):
        torch.rand(3)
    assert not torch.equal(torch.get_rng_state(), before)
