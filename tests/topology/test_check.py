"""`check` accepts what is sound and says, with step and row, what is not, in topologies as users may write them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

import reference
from shoal import registry
from shoal.errors import UserError
from shoal.topology import check, matrix, spectral

PEERS = ("a", "b", "c", "d")
ISLAND: dict[str, int] = {}


class FromRows:
    """A topology written down as matrices, one per step of the period. Lies where a test makes it."""

    fixed = False
    directed = True

    def __init__(self, *matrices: Any) -> None:
        self.matrices = [np.array(m, dtype=float) for m in matrices]

    def period(self, peers: Sequence[str], island: Mapping[str, int]) -> int:
        return len(self.matrices)

    def takes(self, peers: Sequence[str], island: Mapping[str, int], t: int, me: str) -> Mapping[str, float]:
        row = self.matrices[t % len(self.matrices)][list(peers).index(me)]
        return {peer: float(w) for peer, w in zip(peers, row, strict=True) if w}

    def gives(self, peers: Sequence[str], island: Mapping[str, int], t: int, me: str) -> Sequence[str]:
        return [p for p in peers if p != me and me in self.takes(peers, island, t, p)]

    def group(self, peers: Sequence[str], island: Mapping[str, int], t: int, me: str) -> Sequence[str] | None:
        return None


class LazyRing(FromRows):
    """A ring with both neighbours at a time; how much a peer keeps of its own value changes with the step."""

    directed = False

    def __init__(self, n: int, own: Sequence[float] = (1 / 3,)) -> None:
        eye, shift = np.eye(n), np.roll(np.eye(n), 1, axis=0)
        super().__init__(*(w * eye + (1 - w) / 2 * (shift + shift.T) for w in own))


CIRCLE = np.array([[0.5, 0, 0, 0.5], [0.5, 0.5, 0, 0], [0, 0.5, 0.5, 0], [0, 0, 0.5, 0.5]])
PAIRS = np.array([[0.5, 0.5, 0, 0], [0.5, 0.5, 0, 0], [0, 0, 0.5, 0.5], [0, 0, 0.5, 0.5]])
CROSS = PAIRS[[0, 2, 1, 3]][:, [0, 2, 1, 3]]


def refused(topology: Any) -> str:
    with pytest.raises(UserError) as caught:
        check(topology, PEERS, ISLAND)
    assert caught.value.key == "mixing.topology"
    assert type(topology).__qualname__ in caught.value.problem
    assert caught.value.mend
    return str(caught.value)


@pytest.mark.parametrize(
    "topology", [FromRows(CIRCLE), FromRows(PAIRS, CROSS), LazyRing(4), LazyRing(4, (0.2, 0.9, 0.5))]
)
def test_sound_topologies_of_ones_own_are_accepted(topology: FromRows) -> None:
    check(topology, PEERS, ISLAND)


def test_a_topology_of_ones_own_is_found_by_module_and_name() -> None:
    assert registry.strategy("topology", "shoal.topology.ring:Ring") is registry.strategy("topology", "ring")


@pytest.mark.parametrize("n", [3, 4, 6, 8, 16])
def test_the_three_point_ring_contracts_by_its_second_eigenvalue(n: int) -> None:
    peers = tuple(f"p{i:02d}" for i in range(n))
    exact = max(abs(1 / 3 + 2 / 3 * math.cos(2 * math.pi * j / n)) for j in range(1, n))
    assert spectral(LazyRing(n), peers, {}) == pytest.approx(exact, abs=1e-12)
    if n == 8:
        assert exact == pytest.approx(0.804737854124, abs=1e-12)


def test_weights_that_change_from_step_to_step_never_scale_the_parameters() -> None:
    """The first mix uses the weights of its own step: with other weights per step the mean stays exactly where SGD
    takes it, from step 0 on. (Combining a mix with the next step's weight scales all parameters down.)"""
    topology = LazyRing(4, (0.2, 0.9, 0.5))
    for t in range(7):
        for me in PEERS:
            assert math.fsum(topology.takes(PEERS, {}, t, me).values()) == pytest.approx(1, abs=1e-15)
    X = np.array([[1.0], [-2.0], [4.0], [0.5]])
    states = reference.awc(X, lambda t: matrix(topology, PEERS, {}, t), lambda t, i, x: np.ones(1), lr=0.1, steps=7)
    for t, state in enumerate(states):
        assert state.mean() == pytest.approx(X.mean() - 0.1 * t, abs=1e-12)
    np.testing.assert_allclose(states[1], topology.matrices[0] @ X - 0.1, atol=1e-15)


def test_a_row_that_does_not_sum_to_one() -> None:
    broken = PAIRS.copy()
    broken[2, 3] = 0.4
    text = refused(FromRows(CIRCLE, broken))
    assert "step 1, row 'c'" in text and "0.9" in text


def test_a_column_that_does_not_sum_to_one() -> None:
    star = np.array([[0.25] * 4, [0.5, 0.5, 0, 0], [0.5, 0, 0.5, 0], [0.5, 0, 0, 0.5]])
    text = refused(FromRows(star))
    assert "step 0, row 'a'" in text and "1.75" in text and "mean" in text


@pytest.mark.parametrize("weight", [-0.5, math.nan])
def test_a_weight_that_is_not_positive(weight: float) -> None:
    broken = PAIRS.copy()
    broken[1] = [weight, 1 - weight, 0, 0]
    assert "step 0, row 'b'" in refused(FromRows(broken))


def test_a_worker_that_throws_its_own_value_away() -> None:
    assert "no weight for itself" in refused(FromRows(np.roll(np.eye(4), 1, axis=0)))


def lie(topology: FromRows, **methods: Callable[..., Any] | bool) -> FromRows:
    for name, method in methods.items():
        setattr(topology, name, method)
    return topology


def test_a_row_out_of_order_or_with_strangers() -> None:
    backward = lie(FromRows(PAIRS), takes=lambda p, i, t, me: dict([*FromRows(PAIRS).takes(p, i, t, me).items()][::-1]))
    assert "sorted order" in refused(backward)
    assert "'zoe'" in refused(lie(FromRows(PAIRS), takes=lambda p, i, t, me: {me: 0.5, "zoe": 0.5}))


def test_a_sender_without_a_receiver_and_a_receiver_without_a_sender() -> None:
    """Case B4: an exchange that only one side believes in would wait for ever."""
    text = refused(lie(FromRows(PAIRS), gives=lambda p, i, t, me: []))
    assert "step 0, row 'a'" in text and "gives to []" in text and "['b']" in text
    assert "gives to" in refused(lie(FromRows(PAIRS), gives=lambda p, i, t, me: [q for q in p if q != me]))


def test_groups_that_are_not_the_rows() -> None:
    mine = {"a": ["a", "b"], "b": ["a", "b"], "c": ["c", "d"], "d": ["c", "d"]}
    check(lie(FromRows(PAIRS, CIRCLE), group=lambda p, i, t, me: mine[me] if t % 2 == 0 else None), PEERS, ISLAND)
    assert "row 'a'" in refused(lie(FromRows(PAIRS, CROSS), group=lambda p, i, t, me: list(p)))
    assert "all or none" in refused(lie(FromRows(PAIRS), group=lambda p, i, t, me: mine[me] if me < "c" else None))
    chain = lie(LazyRing(4, (0.5,)), group=lambda p, i, t, me: list(LazyRing(4).takes(p, i, t, me)))
    assert "takes from" in refused(chain)
    uneven = np.array([[0.7, 0.3, 0, 0], [0.3, 0.7, 0, 0], [0, 0, 0.5, 0.5], [0, 0, 0.5, 0.5]])
    assert "weight 0.7" in refused(lie(FromRows(uneven), group=lambda p, i, t, me: mine[me]))


def test_claims_that_do_not_hold() -> None:
    assert "another at step" in refused(lie(FromRows(PAIRS, CROSS), period=lambda p, i: 1))
    assert "fixed = False" in refused(lie(FromRows(PAIRS, CROSS), fixed=True))
    assert "directed = True" in refused(lie(FromRows(CIRCLE), directed=False))
    assert "at least 1" in refused(lie(FromRows(PAIRS), period=lambda p, i: 0))


def test_a_graph_in_pieces_is_refused_with_its_pieces() -> None:
    """Case B4: two pieces are an error that lists the components."""
    text = refused(FromRows(PAIRS))
    assert "2 pieces: a, b | c, d" in text


def test_a_lone_worker_is_connected() -> None:
    check(FromRows([[1.0]]), ("a",), {})
