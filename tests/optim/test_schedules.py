"""Learning-rate schedules at their ends, between them, and past them."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import UserError
from shoal.optim import learning_rate

NAMES = ["constant", "linear", "cosine"]
some_name = st.sampled_from(NAMES)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("warmup", [0, 1, 7])
def test_the_ends(name: str, warmup: int) -> None:
    rate = learning_rate(name, base=0.3, steps=50, warmup=warmup, floor=0.1)
    assert rate(0) == pytest.approx(0.3 / (warmup + 1), rel=1e-15)
    assert rate(warmup) == 0.3
    last = 0.3 if name == "constant" else 0.3 * 0.1
    assert rate(49) == rate(50) == rate(10**9) == last


def test_half_way() -> None:
    for name in ("linear", "cosine"):
        assert learning_rate(name, base=2.0, steps=21, floor=0.5)(10) == pytest.approx(1.5, rel=1e-15)
    quarter = learning_rate("cosine", base=2.0, steps=21)(5)
    assert quarter == pytest.approx(1 + math.cos(math.pi / 4), rel=1e-15)
    assert learning_rate("linear", base=2.0, steps=21)(5) == pytest.approx(1.5, rel=1e-15)


@given(
    name=some_name,
    base=st.floats(1e-6, 10),
    steps=st.integers(1, 300),
    warmup=st.integers(0, 400),
    floor=st.floats(0, 1),
)
def test_it_rises_then_falls_between_the_floor_and_the_base(
    name: str, base: float, steps: int, warmup: int, floor: float
) -> None:
    rate = learning_rate(name, base=base, steps=steps, warmup=warmup, floor=floor)
    rates = [rate(t) for t in range(steps + 5)]
    slack = 1e-12 * base
    rising, falling = rates[: warmup + 1], rates[warmup:]
    assert all(0 < a < b for a, b in pairwise(rising))
    assert all(a >= b - slack for a, b in pairwise(falling))
    assert all(base * floor - slack <= r <= base + slack for r in falling)
    assert max(rates) <= base + slack


@given(name=some_name, t=st.integers(0, 500))
def test_it_is_a_function_of_the_step_alone(name: str, t: int) -> None:
    """Cases D12 and D13: a worker that joins or resumes at step t has the rate of all others; nothing is kept."""
    table: dict[str, Any] = {"base": 1e-3, "steps": 400, "warmup": 20, "floor": 0.1}
    walked = learning_rate(name, **table)
    for earlier in range(t):
        walked(earlier)
    assert walked(t) == learning_rate(name, **table)(t)


def test_a_run_of_one_step_and_one_shorter_than_its_warm_up() -> None:
    assert learning_rate("cosine", base=1.0, steps=1)(0) == 1.0
    short = learning_rate("cosine", base=1.0, steps=3, warmup=9)
    assert [short(t) for t in range(3)] == [0.1, 0.2, 0.3]


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"name": "cosin"}, "schedule.name"),
        ({"steps": 0}, "run.steps"),
        ({"warmup": -1}, "schedule.warmup"),
        ({"floor": 1.1}, "schedule.floor"),
        ({"floor": math.nan}, "schedule.floor"),
    ],
)
def test_what_makes_no_sense_is_refused(change: dict[str, Any], key: str) -> None:
    with pytest.raises(UserError) as caught:
        learning_rate(**{"name": "cosine", "base": 1.0, "steps": 10, "warmup": 0, "floor": 0.1, **change})
    assert caught.value.key == key
