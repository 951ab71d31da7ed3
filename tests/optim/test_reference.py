"""The oracle itself: against torch where torch has the same thing, and against what the papers prove of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import reference


@pytest.mark.parametrize("decay", [0.0, 0.2])
@pytest.mark.parametrize(
    ("oracle", "torchs", "options"),
    [
        (reference.SGD, torch.optim.SGD, {}),
        (reference.SGD, torch.optim.SGD, {"momentum": 0.9}),
        (reference.Adam, torch.optim.Adam, {"betas": (0.7, 0.9), "eps": 1e-5}),
        (reference.AdamW, torch.optim.AdamW, {}),
    ],
)
def test_its_optimizers_are_torchs(oracle: Any, torchs: Any, options: dict[str, Any], decay: float) -> None:
    p, mine = nn.Parameter(torch.ones(9, dtype=torch.float64)), oracle(weight_decay=decay, **options)
    optimizer, x, rng = torchs([p], lr=0.03, weight_decay=decay, **options), np.ones(9), np.random.default_rng(3)
    for _ in range(20):
        g = rng.normal(size=9)
        p.grad = torch.from_numpy(g.copy())
        optimizer.step()
        x = mine.step(x, g, 0.03)
        np.testing.assert_allclose(p.detach().numpy(), x, rtol=0, atol=1e-13)


def test_all_reduce_is_one_process_on_the_joined_batch() -> None:
    """Unequal shares: samples weigh alike, wherever they are."""
    rng = np.random.default_rng(0)
    data, shares = rng.normal(size=(32, 4)), [11, 11, 10]
    parts = np.split(data, np.cumsum(shares)[:-1])
    split = reference.all_reduce(
        np.zeros(4), lambda t, i, x: (x - parts[i]).mean(0), reference.Adam(), lr=lambda t: 0.1, steps=8, samples=shares
    )
    single = reference.all_reduce(
        np.zeros(4), lambda t, i, x: (x - data).mean(0), reference.Adam(), lr=lambda t: 0.1, steps=8, samples=[32]
    )
    np.testing.assert_allclose(split, single, atol=1e-13)


def test_gossip_on_equal_quadratics_has_the_mean_of_synchronous_training() -> None:
    rng = np.random.default_rng(1)
    targets, hessian = rng.normal(size=(4, 3)), np.diag([0.5, 1.0, 2.0])
    W = np.array([[0.5, 0.5, 0, 0], [0, 0.5, 0.5, 0], [0, 0, 0.5, 0.5], [0.5, 0, 0, 0.5]])

    def gradient(t: int, i: int, x: reference.Array) -> reference.Array:
        return hessian @ (x - targets[i])

    gossiped = reference.awc(np.zeros((4, 3)), lambda t: W, gradient, lr=0.1, steps=12)
    joined = reference.all_reduce(
        np.zeros(3), gradient, reference.SGD(), lr=lambda t: 0.1, steps=12, samples=[1, 1, 1, 1]
    )
    np.testing.assert_allclose([X.mean(0) for X in gossiped], joined, atol=1e-13)
    assert reference.consensus_error(gossiped[-1]) > 1e-3


def test_without_mixing_gossip_is_each_worker_alone() -> None:
    rng = np.random.default_rng(2)
    X, slopes = rng.normal(size=(3, 2)), rng.normal(size=(3, 2))

    def gradient(t: int, i: int, x: reference.Array) -> reference.Array:
        return slopes[i] * x**2

    optimizers = [reference.AccumAdamW(window=2, weight_decay=0.1) for _ in range(3)]
    together = reference.gossip(X, lambda t: np.eye(3), gradient, optimizers, lr=lambda t: 0.01 * (t + 1), steps=7)
    for i in range(3):
        x, alone = X[i], reference.AccumAdamW(window=2, weight_decay=0.1)
        for t in range(7):
            x = alone.step(x, gradient(t, i, x), 0.01 * (t + 1))
        np.testing.assert_array_equal(together[-1][i], x)


def test_gossip_can_be_continued() -> None:
    def run(X: reference.Array, optimizers: list[reference.Adam], steps: int, first: int) -> reference.Array:
        return reference.gossip(
            X,
            lambda t: np.full((2, 2), 0.5),
            lambda t, i, x: x + i + t,
            optimizers,
            lr=lambda t: 0.1 / (t + 1),
            steps=steps,
            first=first,
        )[-1]

    whole = run(np.eye(2), [reference.Adam(), reference.Adam()], 6, 0)
    optimizers = [reference.Adam(), reference.Adam()]
    np.testing.assert_array_equal(run(run(np.eye(2), optimizers, 2, 0), optimizers, 4, 2), whole)
