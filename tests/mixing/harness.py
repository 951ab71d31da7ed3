"""Workers that train a small known problem under any mixing, in a virtual world.

    from mixing.harness import Problem, train

The problem: worker i's loss in step t is ``sum(h/2 (x - c)^2 - cos x)``, so its gradient is ``h (x - c) + sin x``, with
h and c drawn for each worker and step. The model's parameters have several shapes; x is all of them, flat.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from shoal.mixing import Context, Mixing
from shoal.mixing.all_reduce import AllReduce
from shoal.mixing.gossip import Gossip
from shoal.registry import NoOptions, strategy
from shoal.state import Block, Gate, Watch, make_blocks
from shoal.state.snapshot import capture, restore
from shoal.topology import Topology
from shoal.world import Owners, Work, World
from shoal.worlds.simulation import Simulation
from state.building import specs_of
from worlds.clusters import flat

Array = NDArray[np.float64]
SHAPES = {"a": (3, 2), "b": (4,), "c": (2, 1, 2)}
D = 14
FLOPS = 3e7  # of one step; 30 ms on the clusters here
CLUSTER: dict[str, Any] = {"latency": 0.002, "bandwidth": 1e4}  # a block takes about as long as a step


@dataclass(frozen=True)
class Problem:
    """`n` workers' losses and starting points. `equal_start`: all begin with the same parameters."""

    n: int
    seed: int = 0
    equal_start: bool = False
    broken: Mapping[int, int] = field(default_factory=dict)  # step → worker whose gradient is infinite

    def terms(self, t: int, i: int) -> tuple[Array, Array]:
        rng = np.random.default_rng([self.seed, t, i])
        return rng.uniform(0.2, 1.0, D), rng.normal(size=D) + (np.inf if self.broken.get(t) == i else 0.0)

    def gradient(self, t: int, i: int, x: Array) -> Array:
        h, c = self.terms(t, i)
        return h * (x - c) + np.sin(x)

    def start(self, i: int) -> Array:
        return np.random.default_rng([self.seed, 0 if self.equal_start else i]).normal(size=D)

    def starts(self) -> Array:
        return np.stack([self.start(i) for i in range(self.n)])


class Model(nn.Module):
    """Parameters a, b, c that hold the vector x, and the problem's loss."""

    def __init__(self, x: Array, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        parts = np.split(x, np.cumsum([np.prod(shape) for shape in SHAPES.values()])[:-1].astype(int))
        for (name, shape), part in zip(SHAPES.items(), parts, strict=True):
            self.register_parameter(name, nn.Parameter(torch.tensor(part, dtype=dtype).reshape(shape)))

    def forward(self, h: Array, c: Array) -> Tensor:
        x = torch.cat([p.reshape(-1) for p in self.parameters()])
        return (0.5 * torch.tensor(h, dtype=x.dtype) * (x - torch.tensor(c, dtype=x.dtype)) ** 2 - torch.cos(x)).sum()

    @property
    def x(self) -> Array:
        return torch.cat([p.detach().reshape(-1) for p in self.parameters()]).double().numpy().copy()


Factory = Callable[[Sequence[nn.Parameter], bool], torch.optim.Optimizer]


def sgd(params: Sequence[nn.Parameter], decay: bool) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=0.1)


def adamw(params: Sequence[nn.Parameter], decay: bool) -> torch.optim.Optimizer:
    return torch.optim.AdamW(params, lr=0.05, weight_decay=0.1)


@dataclass(kw_only=True)
class Setting:
    """How to train. `bucket_bytes` 1 gives a block per parameter; `weights` are the workers' shares of the samples."""

    mixing: Callable[[Context], Mixing] = Gossip
    topology: Topology | str | None = "ring"
    optimizer: Factory = sgd
    steps: int = 6
    first: int = 0
    bucket_bytes: int = 1
    clip: float | None = None
    refuse_nonfinite: bool = True
    max_bad_steps: int = 3
    weights: Sequence[float] | None = None
    island_size: int = 1
    dtype: torch.dtype = torch.float64
    settle_each_step: bool = False
    cluster: Mapping[str, Any] = field(default_factory=lambda: dict(CLUSTER))
    simulation: Mapping[str, Any] = field(default_factory=dict)
    resume: Sequence[tuple[dict[str, Tensor], dict[str, int | float]]] | None = None


@dataclass
class Trained:
    """`xs`: X(first), …, X(first + steps), each [n, D]. `saved`: each worker's checkpoint at the end."""

    xs: list[Array]
    saved: list[tuple[dict[str, Tensor], dict[str, int | float]]]
    simulation: Simulation


def topology_of(setting: Setting) -> Topology | None:
    return strategy("topology", setting.topology)() if isinstance(setting.topology, str) else setting.topology


def owners_of(n: int, island_size: int) -> Owners:
    peers = tuple(f"p{i:04d}" for i in range(n))
    return Owners(0, peers, island={peer: i // island_size for i, peer in enumerate(peers)})


def weights_of(setting: Setting, n: int) -> list[float]:
    return list(setting.weights) if setting.weights is not None else [1.0] * n


def train(problem: Problem, setting: Setting) -> Trained:
    """Run all workers of `problem` in one virtual world."""
    simulation = Simulation(flat(problem.n, **setting.cluster), **setting.simulation)
    results = simulation.run(lambda world: _work(world, problem, setting))
    histories, saved = zip(*(results[peer] for peer in sorted(results)), strict=True)
    return Trained([np.stack(rows) for rows in zip(*histories, strict=True)], list(saved), simulation)


async def _work(world: World, problem: Problem, setting: Setting) -> tuple[list[Array], tuple[Any, Any]]:
    """One worker's training loop, as the product's own worker does it."""
    i = world.peers.index(world.me)
    weight = weights_of(setting, problem.n)[i]
    model = Model(problem.start(i), setting.dtype)
    specs = specs_of(model, bucket_bytes=setting.bucket_bytes)
    owners = owners_of(problem.n, setting.island_size)
    blocks = make_blocks(model, specs, owners, lambda flat, decay: setting.optimizer([flat], decay))
    if setting.resume is not None:
        restore(model, blocks, *setting.resume[i])
    watch = Watch(blocks)
    gate = Gate(
        world,
        blocks,
        clip=setting.clip,
        refuse_nonfinite=setting.refuse_nonfinite,
        max_bad_steps=setting.max_bad_steps,
    )
    mixing = setting.mixing(
        Context(world=world, blocks=blocks, gate=gate, topology=topology_of(setting), options=NoOptions())
    )
    history = [model.x]
    for t in range(setting.first, setting.first + setting.steps):
        await _step(world, await mixing.begin(t), problem, i, weight, model, blocks, watch, mixing)
        await mixing.end(t)
        history.append(model.x)
        if setting.settle_each_step:
            await mixing.settle()
    await mixing.settle()
    tensors, scalars = capture(model, blocks)
    return history, ({key: tensor.clone() for key, tensor in tensors.items()}, scalars)


async def _step(
    world: World,
    t: int,
    problem: Problem,
    i: int,
    weight: float,
    model: Model,
    blocks: Sequence[Block],
    watch: Watch,
    mixing: Mixing,
) -> None:
    by_key: dict[Hashable, Block] = {block.key: block for block in blocks}

    def compute(mark: Callable[[Hashable], None]) -> None:
        def ready(block: Block) -> None:
            block.seal(weight)
            mark(block.key)

        watch.begin()
        watch.arm(ready)
        (weight * model(*problem.terms(t, i))).backward()
        watch.flush()

    work = Work("backward", flops=FLOPS, marks={block.key: block.spec.ready for block in blocks})
    updates = [world.spawn(mixing.update(by_key[key], t), "update") async for key in world.reach(compute, work)]
    for update in updates:
        await update


__all__ = ["AllReduce", "Gossip", "Problem", "Setting", "Trained", "adamw", "sgd", "train"]
