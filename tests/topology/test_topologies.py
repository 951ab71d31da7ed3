"""Every topology against the table of its exact properties, and against what must hold for any of them."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import reference
from shoal import registry
from shoal.topology import Topology, check, matrix, spectral
from shoal.topology.alternating_exponential_ring import AlternatingExponentialRing
from shoal.topology.complete import Complete
from shoal.topology.one_peer_exponential import OnePeerExponential
from shoal.topology.ring import Ring

NAMES = ["alternating-exponential-ring", "complete", "one-peer-exponential", "ring"]
CLASSES: list[type[Topology]] = [AlternatingExponentialRing, Complete, OnePeerExponential, Ring]  # pyright checks them
EXACT = 1e-12


def make(name: str) -> Topology:
    return registry.strategy("topology", name)()


def peers_of(n: int) -> tuple[str, ...]:
    return tuple(f"d{i:04d}" for i in range(n))


def equal_islands(n: int, size: int) -> dict[str, int]:
    return {peer: i // size for i, peer in enumerate(peers_of(n))}


def islands_of(sizes: list[int]) -> dict[str, int]:
    numbers = [number for number, size in enumerate(sizes) for _ in range(size)]
    return dict(zip(peers_of(len(numbers)), numbers, strict=True))


def scattered(n: int, islands: int, seed: int) -> dict[str, int]:
    """A random partition whose islands are neither contiguous nor numbered without gaps."""
    rng = random.Random(seed)
    return {peer: 7 * rng.randrange(islands) - 3 for peer in peers_of(n)}


def weights(name: str, island: Mapping[str, int], t: int) -> reference.Array:
    return matrix(make(name), sorted(island), island, t)


def product(name: str, island: Mapping[str, int], start: int, steps: int) -> reference.Array:
    out = np.eye(len(island))
    for t in range(start, start + steps):
        out = weights(name, island, t) @ out
    return out


def average(n: int) -> reference.Array:
    return np.full((n, n), 1 / n)


def test_the_registry_lists_the_topologies_each_with_a_line() -> None:
    entries = {entry.name: entry.summary for entry in registry.entries("topology")}
    assert sorted(entries) == NAMES
    assert [registry.strategy("topology", name) for name in NAMES] == CLASSES
    assert all(summary.endswith(".") and len(summary) < 120 for summary in entries.values())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("n", range(1, 34))
def test_every_step_of_two_periods_is_doubly_stochastic_and_everybody_agrees_in_the_limit(name: str, n: int) -> None:
    """Every W(t), the first included, for any number of workers and groups of one too."""
    topology = make(name)
    for size in (1, 3, 4, n):
        island = equal_islands(n, size)
        period = topology.period(peers_of(n), island)
        for t in range(2 * period):
            w = weights(name, island, t)
            assert (w >= 0).all() and (np.diag(w) > 0).all()
            np.testing.assert_allclose(w.sum(axis=0), 1, atol=EXACT)
            np.testing.assert_allclose(w.sum(axis=1), 1, atol=EXACT)
            if not topology.directed:
                assert (w == w.T).all()
        assert (weights(name, island, 0) == weights(name, island, period)).all()
        assert spectral(topology, peers_of(n), island) < 1 - 1e-3
        check(topology, peers_of(n), island)
        if name != "alternating-exponential-ring":
            break  # the others do not look at islands


@settings(max_examples=80, deadline=None)
@given(n=st.integers(1, 33), islands=st.integers(1, 12), seed=st.integers(0, 10**6))
def test_any_partition_into_islands_gives_a_sound_alternating_exponential_ring(n: int, islands: int, seed: int) -> None:
    """Unequal islands, islands of one, any number of them, numbered anyhow."""
    island = scattered(n, islands, seed)
    topology = make("alternating-exponential-ring")
    check(topology, peers_of(n), island)  # doubly stochastic, consistent, connected; see test_check for the checks
    assert spectral(topology, peers_of(n), island) < 1


@settings(max_examples=60, deadline=None)
@given(name=st.sampled_from(NAMES), n=st.integers(1, 33), t=st.integers(0, 10**6), seed=st.integers(0, 10**6))
def test_mixing_keeps_the_mean_of_the_workers_at_every_step(name: str, n: int, t: int, seed: int) -> None:
    X = np.random.default_rng(seed).normal(size=(n, 5))
    mixed = reference.mix(X, weights(name, scattered(n, 5, seed), t))
    np.testing.assert_allclose(mixed.mean(axis=0), X.mean(axis=0), atol=EXACT)
    assert reference.consensus_error(mixed) <= reference.consensus_error(X) + EXACT


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("n", [1, 2, 3, 5, 8, 12, 33])
def test_takes_gives_and_group_tell_the_same_story(name: str, n: int) -> None:
    topology, peers, island = make(name), peers_of(n), scattered(n, 4, n)
    for t in range(topology.period(peers, island)):
        w = matrix(topology, peers, island, t)
        for i, me in enumerate(peers):
            takes = topology.takes(peers, island, t, me)
            gives = topology.gives(peers, island, t, me)
            group = topology.group(peers, island, t, me)
            assert list(takes) == [peers[j] for j in np.flatnonzero(w[i])]
            assert list(gives) == [peers[j] for j in np.flatnonzero(w[:, i]) if j != i]
            if group is not None:
                assert list(group) == list(takes)
                assert set(takes.values()) == {1 / len(group)}


@pytest.mark.parametrize("name", NAMES)
def test_a_stranger_is_not_given_a_row(name: str) -> None:
    topology = make(name)
    for n in (2, 3, 4):
        island = equal_islands(n, 2)
        with pytest.raises(KeyError):
            topology.gives(peers_of(n), island, 0, "zebra")


@pytest.mark.parametrize("name", NAMES)
def test_a_single_worker_keeps_its_value(name: str) -> None:
    """A group of one has weight 1 and does not divide by zero."""
    topology = make(name)
    assert topology.period(("a",), {"a": 5}) == 1
    for t in range(3):
        assert topology.takes(("a",), {"a": 5}, t, "a") == {"a": 1.0}
        assert list(topology.gives(("a",), {"a": 5}, t, "a")) == []
        assert list(topology.group(("a",), {"a": 5}, t, "a") or ()) == ["a"]


@pytest.mark.parametrize("n", [1, 2, 3, 7, 16])
def test_complete_is_exact_after_one_mix(n: int) -> None:
    np.testing.assert_allclose(product("complete", equal_islands(n, 2), 3, 1), average(n), atol=EXACT)


@pytest.mark.parametrize("n", range(4, 34, 2))
def test_an_even_ring_contracts_by_cos_of_two_pi_over_n_per_period(n: int) -> None:
    ring, island = make("ring"), equal_islands(n, 2)
    assert ring.period(peers_of(n), island) == 2
    assert spectral(ring, peers_of(n), island) == pytest.approx(abs(math.cos(2 * math.pi / n)), abs=EXACT)


@pytest.mark.parametrize(("n", "factor"), [(8, 0.7071), (16, 0.9239), (32, 0.9808)])
def test_the_published_contraction_factors_of_the_ring(n: int, factor: float) -> None:
    assert spectral(make("ring"), peers_of(n), equal_islands(n, 2)) == pytest.approx(factor, abs=5e-5)


def test_rings_of_two_and_four_are_exact_after_a_period() -> None:
    assert make("ring").period(peers_of(2), {}) == 1
    np.testing.assert_allclose(product("ring", equal_islands(2, 1), 5, 1), average(2), atol=EXACT)
    for start in (0, 1):
        np.testing.assert_allclose(product("ring", equal_islands(4, 1), start, 2), average(4), atol=EXACT)


def test_the_pairs_of_an_even_ring() -> None:
    ring, peers = make("ring"), peers_of(6)
    groups = [sorted({tuple(ring.group(peers, {}, t, me) or ()) for me in peers}) for t in range(4)]
    a, b, c, d, e, f = peers
    assert groups[0] == groups[2] == [(a, b), (c, d), (e, f)]
    assert groups[1] == groups[3] == [(a, f), (b, c), (d, e)]


@pytest.mark.parametrize("n", [3, 5, 9, 33])
def test_an_odd_ring_leaves_each_worker_idle_once_per_period_and_pairs_neighbours(n: int) -> None:
    ring, peers = make("ring"), peers_of(n)
    assert ring.period(peers, {}) == n
    for t in range(n):
        groups = {tuple(ring.group(peers, {}, t, me) or ()) for me in peers}
        assert [g for g in groups if len(g) == 1] == [(peers[t],)]
        for first, second in (g for g in groups if len(g) == 2):
            assert (peers.index(second) - peers.index(first)) % n in (1, n - 1)


@pytest.mark.parametrize("p", range(1, 6))
def test_one_peer_exponential_on_a_power_of_two_is_exact_after_log2_n_mixes(p: int) -> None:
    n = 2**p
    topology, island = make("one-peer-exponential"), equal_islands(2**p, 2)
    assert topology.period(peers_of(n), island) == p
    for start in range(p):
        np.testing.assert_allclose(product("one-peer-exponential", island, start, p), average(n), atol=EXACT)
        shorter = product("one-peer-exponential", island, start, p - 1)
        assert np.abs(shorter - average(n)).max() > 1e-3
    for t in range(p):
        w = weights("one-peer-exponential", island, t)
        assert (w == w.T).all()
        assert all(
            topology.takes(peers_of(n), island, t, me).keys() == {me, peers_of(n)[i ^ 2**t]}
            for i, me in enumerate(peers_of(n))
        )


@pytest.mark.parametrize("n", [3, 5, 6, 7, 9, 12, 31, 33])
def test_one_peer_exponential_elsewhere_shifts_round_the_circle_and_is_not_exact(n: int) -> None:
    """The eigenvalue of each mode of the circle is known, so the contraction is, too."""
    topology, island, peers = make("one-peer-exponential"), equal_islands(n, 2), peers_of(n)
    period = math.ceil(math.log2(n))
    assert topology.period(peers, island) == period
    for t in range(2 * period):
        shift = 2 ** (t % period)
        for i, me in enumerate(peers):
            assert topology.takes(peers, island, t, me) == {me: 0.5, peers[(i - shift) % n]: 0.5}
            assert list(topology.gives(peers, island, t, me)) == [peers[(i + shift) % n]]
            assert topology.group(peers, island, t, me) is None
    modes = [math.prod(abs(math.cos(math.pi * j * 2**k / n)) for k in range(period)) for j in range(1, n)]
    assert spectral(topology, peers, island) == pytest.approx(max(modes), abs=EXACT)
    assert max(modes) > 1e-3


@pytest.mark.parametrize(("n", "size"), [(16, 4), (4, 2), (4, 1), (8, 1), (16, 2), (32, 4), (32, 16), (24, 3), (12, 3)])
def test_aer_on_a_power_of_two_of_equal_islands_is_exact_after_twice_log2_of_them(n: int, size: int) -> None:
    topology, island = make("alternating-exponential-ring"), equal_islands(n, size)
    rounds = int(math.log2(n // size))
    assert topology.period(peers_of(n), island) == 2 * rounds
    for start in range(0, 2 * rounds, 2):  # from the start of any round
        mixed = product("alternating-exponential-ring", island, start, 2 * rounds)
        np.testing.assert_allclose(mixed, average(n), atol=EXACT)
    if rounds > 1:
        early = product("alternating-exponential-ring", island, 0, 2 * rounds - 1)
        assert np.abs(early - average(n)).max() > 1e-3


def test_sixteen_workers_on_four_islands_agree_after_four_mixes() -> None:
    X = np.random.default_rng(1).normal(size=(16, 3))
    island = equal_islands(16, 4)
    for t in range(4):
        X = reference.mix(X, weights("alternating-exponential-ring", island, t))
    assert reference.consensus_error(X) < EXACT


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("islands", [4, 8, 16])
def test_aer_half_of_the_islands_use_the_slow_network_and_colours_alternate(islands: int, size: int) -> None:
    n = islands * size
    topology, island, peers = make("alternating-exponential-ring"), equal_islands(islands * size, size), peers_of(n)
    for t in range(topology.period(peers, island)):
        across = []
        for me in peers:
            numbers = sorted({island[peer] for peer in topology.group(peers, island, t, me) or ()})
            assert len(topology.group(peers, island, t, me) or ()) == size * len(numbers)
            if len(numbers) == 2:
                across.append((numbers[0], numbers[1]))
        r, colour = divmod(t, 2)
        pairs = [(low, low | 1 << r) for low in range(islands) if not low & 1 << r]
        assert sorted(set(across)) == pairs[colour::2]
        assert len(across) == n // 2


@pytest.mark.parametrize("sizes", [[1], [5], [1, 4], [3, 2], [2, 6]])
def test_aer_on_one_or_two_islands_of_any_sizes_is_exact_after_a_period(sizes: list[int]) -> None:
    island = islands_of(sizes)
    topology = make("alternating-exponential-ring")
    assert topology.period(sorted(island), island) == len(sizes)
    assert spectral(topology, sorted(island), island) < EXACT


@pytest.mark.parametrize(("sizes", "exact"), [([1, 2, 2, 4], True), ([2, 2, 2, 4], False), ([1, 1, 1], False)])
def test_aer_on_other_islands_is_not_exact_but_for_lucky_sizes(sizes: list[int], exact: bool) -> None:
    island = islands_of(sizes)
    assert (spectral(make("alternating-exponential-ring"), sorted(island), island) < EXACT) is exact


def test_aer_depends_on_the_order_of_island_numbers_only() -> None:
    topology, peers = make("alternating-exponential-ring"), peers_of(12)
    near = {peer: i % 3 for i, peer in enumerate(peers)}
    far = {peer: 10 * number - 5 for peer, number in near.items()}
    for t in range(4):
        for me in peers:
            assert topology.group(peers, near, t, me) == topology.group(peers, far, t, me)


def test_aer_without_islands_is_one_island() -> None:
    assert list(make("alternating-exponential-ring").group(peers_of(5), {}, 3, "d0001") or ()) == list(peers_of(5))


def test_aer_answers_for_many_owner_sets_in_turn() -> None:
    """What it remembers never mixes one set of owners up with another, however many there are."""
    topology = make("alternating-exponential-ring")
    sets = [(peers_of(n), scattered(n, 4, seed)) for n in (1, 2, 5, 9) for seed in range(25)]
    for _ in range(2):
        for peers, island in sets:
            fresh = make("alternating-exponential-ring")
            assert topology.takes(peers, island, 1, peers[0]) == fresh.takes(peers, island, 1, peers[0])


@pytest.mark.parametrize("name", NAMES)
def test_a_thousand_workers_ask_in_little_work(name: str) -> None:
    """One peer's row is computed from the row's own members: every answer is as long as the peer's group, no longer."""
    peers = peers_of(1024)
    island = equal_islands(1024, 8)
    topology = make(name)
    limit = {"complete": 1024, "alternating-exponential-ring": 16}.get(name, 2)
    for t in range(10):
        for me in peers[::97]:
            assert len(topology.takes(peers, island, t, me)) <= limit
            assert len(topology.gives(peers, island, t, me)) < limit


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("n", [2, 3, 6, 8])
def test_the_mean_of_gossip_follows_the_mean_gradient_on_every_topology(name: str, n: int) -> None:
    rng = np.random.default_rng(n)
    targets, X = rng.normal(size=(n, 4)), rng.normal(size=(n, 4))
    island = scattered(n, 3, n)
    states = reference.awc(
        X, lambda t: weights(name, island, t), lambda t, i, x: (x - targets[i]) * (1 + t), lr=0.05, steps=9
    )
    for t in range(9):
        gradients = (states[t] - targets) * (1 + t)
        np.testing.assert_allclose(states[t + 1].mean(axis=0), (states[t] - 0.05 * gradients).mean(axis=0), atol=EXACT)
