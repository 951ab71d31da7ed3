from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from shoal.probe.rounds import apart, batches, circle, groups

PLACE = {"a0": 0.0, "a1": 0.0003, "b0": 30.0, "b1": 30.0004, "c0": 100.0}


@given(st.integers(0, 25))
def test_every_two_hosts_meet_once_and_nobody_twice_in_a_round(n: int) -> None:
    hosts = [f"h{i}" for i in range(n)]
    rounds = circle(hosts)
    met = [frozenset(pair) for pairs in rounds for pair in pairs]
    assert len(met) == len(set(met)) and set(met) == {frozenset(pair) for pair in combinations(hosts, 2)}
    for pairs in rounds:
        busy = [host for pair in pairs for host in pair]
        assert len(busy) == len(set(busy))
    assert len([pairs for pairs in rounds if pairs]) == (n - 1 + n % 2 if n > 1 else 0)


def latencies() -> dict[tuple[str, str], float]:
    return {(a, b): 1e-3 * abs(PLACE[a] - PLACE[b]) for a, b in combinations(PLACE, 2)}


def test_groups_are_those_that_are_nearer_to_one_another() -> None:
    assert groups(latencies()) == {
        frozenset({"a0", "a1"}),
        frozenset({"b0", "b1"}),
        frozenset({"a0", "a1", "b0", "b1"}),
    }
    assert groups({("a", "b"): 1e-4, ("a", "c"): 1e-4, ("b", "c"): 2e-4}) == set()
    assert groups({}) == set()


def test_pairs_that_may_share_something_are_apart() -> None:
    uplinks, own = groups(latencies()), {host: host for host in PLACE}
    assert apart(("a0", "b0"), ("a1", "b1"), own, uplinks), "both leave island a"
    assert apart(("a0", "b0"), ("c0", "a1"), own, uplinks)
    assert apart(("a0", "c0"), ("b0", "b1"), {**own, "b0": "lab", "a0": "lab"}, uplinks), "they share processors"
    assert apart(("a0", "b0"), ("b0", "c0"), own, set()), "one host is in both"
    assert not apart(("a0", "a1"), ("b0", "b1"), own, uplinks)
    assert not apart(("a0", "a1"), ("b0", "c0"), own, uplinks)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), unique=True))
def test_batches_hold_all_pairs_and_no_two_that_disturb_each_other(numbers: list[tuple[int, int]]) -> None:
    pairs = [(str(a), str(b)) for a, b in numbers]
    made = batches(pairs, lambda p, q: bool(set(p) & set(q)))
    assert sorted(pair for batch in made for pair in batch) == sorted(pairs)
    for batch in made:
        assert all(not set(p) & set(q) for p, q in combinations(batch, 2))
