"""The oracle: decentralised training as plain single-process arithmetic, in float64 and on numpy arrays.

All workers' parameters are one array ``X`` of shape [n, D], row i belonging to the i-th peer in sorted order, and a
step of mixing is a product with the [n, n] matrix W(t). Nothing here imports the product, so that what the product does
can be compared with what the papers say. Arguments are never written to; every function returns new arrays.

A gradient is a function ``(t, i, x) -> g``: the gradient of worker i's loss in step t at its parameters x, shape [D].
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]
Gradient = Callable[[int, int, Array], Array]
Mixer = Callable[[int], Array]
"""Step t → W(t), [n, n]."""


def mix(X: Array, W: Array) -> Array:
    """One step of mixing: row i of the result is sum_j W[i, j] X[j]. [n, D] → [n, D]."""
    return W @ X


def consensus_error(X: Array) -> float:
    """Frobenius norm of the workers' distance from their mean, ``||X - JX||``."""
    return float(np.linalg.norm(X - X.mean(axis=0)))


def awc(X: ArrayLike, weights: Mixer, gradient: Gradient, *, lr: float, steps: int) -> list[Array]:
    """Adapt-while-combine gossip with plain SGD: ``X(t+1) = W(t) X(t) - lr * D(t)``.

    Row i of D(t) is worker i's gradient at its own, *unmixed* x_i(t), since the mix travels while it is computed.

    Returns:
        X(0), X(1), …, X(steps).
    """
    return gossip(X, weights, gradient, [SGD() for _ in np.asarray(X)], lr=lambda t: lr, steps=steps)


def gossip(
    X: ArrayLike,
    weights: Mixer,
    gradient: Gradient,
    optimizers: Sequence[Optimizer],
    *,
    lr: Callable[[int], float],
    steps: int,
    first: int = 0,
) -> list[Array]:
    """Adapt-while-combine gossip with a local optimizer per worker.

    Worker i's optimizer steps from the mixed parameters ``(W(t) X(t))_i`` with the gradient at the unmixed x_i(t);
    weight decay acts on the mixed ones.

    Args:
        first: the step to begin with (to continue a run).

    Returns:
        X(first), …, X(first + steps).
    """
    states = [np.array(X, dtype=np.float64)]
    for t in range(first, first + steps):
        now = states[-1]
        mixed = mix(now, weights(t))
        states.append(np.stack([o.step(mixed[i], gradient(t, i, now[i]), lr(t)) for i, o in enumerate(optimizers)]))
    return states


def all_reduce(
    x: ArrayLike,
    gradient: Gradient,
    optimizer: Optimizer,
    *,
    lr: Callable[[int], float],
    steps: int,
    samples: Sequence[float],
) -> list[Array]:
    """Synchronous data parallelism: all workers hold the same x and step with the mean gradient over all samples.

    Args:
        x: [D].
        samples: samples per step of each worker. `gradient` is the mean over a worker's own samples, so the gradient of
            the joined batch is the mean of the workers' weighted by their samples.

    Returns:
        x(0), …, x(steps), [D] each: what one process computes on the joined batch.
    """
    states = [np.array(x, dtype=np.float64)]
    for t in range(steps):
        now = states[-1]
        mean = sum(share * gradient(t, i, now) for i, share in enumerate(samples)) / sum(samples)
        states.append(optimizer.step(now, np.asarray(mean), lr(t)))
    return states


class Optimizer(Protocol):
    def step(self, x: Array, g: Array, lr: float) -> Array:
        """The parameters after a step from `x` with gradient `g`; advances the optimizer's own state."""
        ...


class SGD:
    """``x - lr * d``, with d the gradient plus `weight_decay` x, or its running sum where there is momentum."""

    def __init__(self, *, momentum: float = 0.0, weight_decay: float = 0.0) -> None:
        self.momentum, self.weight_decay = momentum, weight_decay
        self.sum: Array | None = None

    def step(self, x: Array, g: Array, lr: float) -> Array:
        g = g + self.weight_decay * x
        self.sum = g if self.sum is None else self.momentum * self.sum + g
        return x - lr * self.sum


class Adam:
    """Adam (Kingma and Ba, algorithm 1); weight decay is added to the gradient."""

    decoupled = False

    def __init__(
        self, *, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8, weight_decay: float = 0.0
    ) -> None:
        self.betas, self.eps, self.weight_decay = betas, eps, weight_decay
        self.t, self.m, self.v = 0, np.zeros(()), np.zeros(())

    def step(self, x: Array, g: Array, lr: float) -> Array:
        b1, b2 = self.betas
        self.t += 1
        if self.decoupled:
            x = x * (1 - lr * self.weight_decay)
        else:
            g = g + self.weight_decay * x
        self.m = b1 * self.m + (1 - b1) * g
        self.v = b2 * self.v + (1 - b2) * g**2
        return x - lr * (self.m / (1 - b1**self.t)) / (np.sqrt(self.v / (1 - b2**self.t)) + self.eps)


class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov and Hutter)."""

    decoupled = True


class AccumAdam:
    """AccumAdam (From Promise to Practice, appendix C): fresh gradients move x, window means move the moments."""

    decoupled = False

    def __init__(
        self,
        *,
        window: int = 4,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        self.window, self.betas, self.eps, self.weight_decay = window, betas, eps, weight_decay
        self.t, self.m, self.v, self.a = 0, np.zeros(()), np.zeros(()), np.zeros(())

    def step(self, x: Array, g: Array, lr: float) -> Array:
        b1, b2 = self.betas
        self.t += 1
        k = math.ceil(self.t / self.window)
        if self.decoupled:
            x = x * (1 - lr * self.weight_decay)
        else:
            g = g + self.weight_decay * x
        self.a = self.a + g / self.window
        m = b1 * self.m + (1 - b1) * g
        v = b2 * self.v + (1 - b2) * g**2
        x = x - lr * (m / (1 - b1**k)) / (np.sqrt(v / (1 - b2**k)) + self.eps)
        if self.t % self.window == 0:
            self.m = b1 * self.m + (1 - b1) * self.a
            self.v = b2 * self.v + (1 - b2) * self.a**2
            self.a = np.zeros_like(self.a)
        return x


class AccumAdamW(AccumAdam):
    """AccumAdam with decoupled weight decay."""

    decoupled = True
