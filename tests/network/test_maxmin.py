"""Progressive filling against textbook cases and a plain reference."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.network import fill


def reference(capacities: list[float], flows: list[set[int]], caps: list[float]) -> list[float]:
    """Every flow on its own; all grow together by what the fullest resource still allows, until nothing grows."""
    rates, growing = [0.0] * len(flows), set(range(len(flows)))
    while growing:
        room = [cap - rates[f] for f, cap in enumerate(caps) if f in growing]
        for r, capacity in enumerate(capacities):
            sharing = [f for f in growing if r in flows[f]]
            if sharing:
                room.append((capacity - sum(rates[f] for f in range(len(flows)) if r in flows[f])) / len(sharing))
        step = min(room)
        if step == math.inf:
            return [math.inf if f in growing else rate for f, rate in enumerate(rates)]
        for f in growing:
            rates[f] += step
        full = {
            r
            for r, capacity in enumerate(capacities)
            if sum(rates[f] for f in range(len(flows)) if r in flows[f]) >= capacity * (1 - 1e-12)
        }
        growing = {f for f in growing if not flows[f] & full and rates[f] < caps[f] * (1 - 1e-12)}
    return rates


def test_two_flows_on_one_link_get_half_each() -> None:
    assert fill([10.0], [(1, math.inf, [0]), (1, math.inf, [0])]) == [5.0, 5.0]
    assert fill([10.0], [(2, math.inf, [0])]) == [5.0]


def test_one_long_and_many_short_flows() -> None:
    """A line of links, one flow along all of it and one more on each: the long one gets half of the smallest."""
    assert fill([1.0, 2.0, 4.0], [(1, math.inf, [0, 1, 2]), *[(1, math.inf, [r]) for r in range(3)]]) == [
        0.5,
        0.5,
        1.5,
        3.5,
    ]


def test_bertsekas_and_gallager() -> None:
    """Five sessions: the first bottleneck gives three of them 1/3, the next gives 2/3, the last link is left with 1."""
    sessions = [[0], [0, 1], [0], [1], [2]]
    assert fill([1.0, 1.0, 1.0], [(1, math.inf, s) for s in sessions]) == pytest.approx(
        [1 / 3, 1 / 3, 1 / 3, 2 / 3, 1.0]
    )


def test_what_a_capped_stream_leaves_is_shared_by_the_others() -> None:
    assert fill([10.0], [(1, 2.0, [0]), (1, math.inf, [0]), (1, math.inf, [0])]) == [2.0, 4.0, 4.0]


def test_a_stream_without_resources_gets_its_cap() -> None:
    assert fill([], [(4, 10.0, []), (1, math.inf, [])]) == [2.5, math.inf]


SIZES = st.sampled_from([1.0, 2.0, 2.5, 3.0, 7.0, 10.0, 100.0])


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[float], list[tuple[int, float, list[int]]]]:
    capacities = draw(st.lists(SIZES, min_size=1, max_size=6))
    index = st.integers(0, len(capacities) - 1)
    stream = st.tuples(st.integers(1, 3), st.one_of(st.just(math.inf), SIZES), st.lists(index, unique=True, max_size=4))
    return capacities, draw(st.lists(stream, min_size=1, max_size=8))


@given(cases())
def test_rates_are_those_of_the_reference(case: tuple[list[float], list[tuple[int, float, list[int]]]]) -> None:
    capacities, streams = case
    flows = [set(resources) for count, _, resources in streams for _ in range(count)]
    caps = [cap / count for count, cap, _ in streams for _ in range(count)]
    rates = [rate for (count, _, _), rate in zip(streams, fill(capacities, streams), strict=True) for _ in range(count)]
    assert rates == pytest.approx(reference(capacities, flows, caps), rel=1e-9)


@given(cases())
def test_capacity_is_never_exceeded_and_nothing_is_left_that_a_flow_could_use(
    case: tuple[list[float], list[tuple[int, float, list[int]]]],
) -> None:
    capacities, streams = case
    rates = fill(capacities, streams)
    load = [
        sum(c * rate for (c, _, rs), rate in zip(streams, rates, strict=True) if r in rs)
        for r in range(len(capacities))
    ]
    for r, capacity in enumerate(capacities):
        assert load[r] <= capacity * (1 + 1e-9)
    for (count, cap, resources), rate in zip(streams, rates, strict=True):
        assert rate * count <= cap * (1 + 1e-9)
        saturated = [r for r in resources if load[r] >= capacities[r] * (1 - 1e-9)]
        assert saturated or rate == pytest.approx(cap / count)
