"""All-reduce is single-process training on the joined batch."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import reference
from mixing.harness import Array, Problem, Setting, adamw, sgd, train
from shoal.errors import Diverged
from shoal.mixing import Context
from shoal.mixing.all_reduce import AllReduce
from shoal.mixing.none import Alone
from shoal.registry import NoOptions
from shoal.state import Block, Gate, Watch, make_blocks
from shoal.world import Owners, Work, World
from shoal.worlds.faults import Delay, Jitter
from shoal.worlds.simulation import Simulation
from state.building import specs_of
from worlds.clusters import flat

SETTING = Setting(mixing=AllReduce, topology=None)


def assert_close(got: Sequence[Array], want: Sequence[Array], tolerance: float) -> None:
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, np.broadcast_to(b, a.shape), rtol=0, atol=tolerance)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 6, 8])
@pytest.mark.parametrize("bucket_bytes", [1, 1 << 20])
def test_all_reduce_is_one_process_on_the_joined_batch(n: int, bucket_bytes: int) -> None:
    """With unequal shares (case D13: 11/11/10), one of them empty (case D2)."""
    samples = [float(1 + (3 * i) % 4) for i in range(n - 1)] + [0.0 if n > 2 else 2.0]
    for seed, (factory, optimizer, lr) in enumerate(
        [(sgd, reference.SGD(), 0.1), (adamw, reference.AdamW(weight_decay=0.1), 0.05)]
    ):
        problem = Problem(n, seed, equal_start=True)
        setting = replace(SETTING, bucket_bytes=bucket_bytes, optimizer=factory, weights=samples)
        want = reference.all_reduce(
            problem.start(0), problem.gradient, optimizer, lr=lambda t, lr=lr: lr, steps=6, samples=samples
        )
        assert_close(train(problem, setting).xs, want, 1e-10)


def test_all_workers_hold_the_same_bits() -> None:
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        problem = Problem(5, equal_start=True)
        for x in train(problem, replace(SETTING, dtype=dtype, clip=1.0, optimizer=adamw)).xs:
            assert np.array_equal(x, np.broadcast_to(x[0], x.shape))


def test_all_reduce_does_not_depend_on_bucket_size() -> None:
    """Test T.8 f, defect T.7-7: the clipped norm is global, not sqrt(number of buckets) times the limit."""
    problem = Problem(3, equal_start=True)
    for clip in (None, 0.7):
        setting = replace(SETTING, clip=clip, optimizer=adamw)
        whole, parts = (train(problem, replace(setting, bucket_bytes=size)).xs for size in (1 << 20, 1))
        assert_close(parts, whole, 1e-13)


def test_clipping_is_by_the_norm_of_the_mean_gradient() -> None:
    problem, clip = Problem(3, equal_start=True), 0.7

    def clipped(t: int, i: int, x: Array) -> Array:
        mean = np.mean([problem.gradient(t, j, x) for j in range(3)], axis=0)
        return mean * min(1.0, clip / (np.linalg.norm(mean) + 1e-6))

    want = reference.all_reduce(problem.start(0), clipped, reference.SGD(), lr=lambda t: 0.1, steps=6, samples=[1.0])
    assert_close(train(problem, replace(SETTING, clip=clip)).xs, want, 1e-10)


def test_neither_jitter_nor_order_nor_point_of_execution_changes_a_bit() -> None:
    problem, setting = Problem(4, equal_start=True), replace(SETTING, clip=1.0, optimizer=adamw)
    calm = train(problem, setting).xs
    for seed in range(2):
        storms: list[dict[str, Any]] = [
            {"fuzz": True, "network_seed": seed, "jitter": Jitter(kind="exponential", spread=0.9)},
            {"expand_collectives": True, "network_seed": seed, "faults": [Delay(0.3, seed)], "fuzz": True},
        ]
        for storm in storms:
            got = train(problem, replace(setting, simulation=storm)).xs
            assert all(np.array_equal(a, b) for a, b in zip(got, calm, strict=True))


def test_one_peers_infinite_gradient_is_skipped_by_all() -> None:
    """Case D14: parameters stay finite and equal, and the log says whose gradient it was."""
    problem = Problem(3, equal_start=True, broken={2: 1})
    run = train(problem, SETTING)
    for t, x in enumerate(run.xs):
        assert np.isfinite(x).all() and np.array_equal(x, np.broadcast_to(x[0], x.shape)), t
    assert np.array_equal(run.xs[3], run.xs[2]) and not np.array_equal(run.xs[4], run.xs[3])
    events = [
        (peer, event.fields)
        for peer, trace in run.simulation.traces.items()
        for event in trace.events
        if event.kind == "nonfinite"
    ]
    assert events == [(f"p000{i}", {"step": 2, "mine": i == 1}) for i in range(3)]


def test_bad_steps_in_a_row_end_the_run() -> None:
    """Case C8: a loss that is always NaN stops with a reason, and not before the limit."""
    problem = Problem(2, equal_start=True, broken={1: 0, 2: 0, 4: 1, 5: 1, 6: 0})
    train(problem, replace(SETTING, steps=6, max_bad_steps=3))
    with pytest.raises(Diverged, match=r"peer 'p000[01]' at step 6: gradients were not finite in 3 steps in a row"):
        train(problem, replace(SETTING, steps=7, max_bad_steps=3))


def test_a_resumed_run_has_the_same_bits() -> None:
    problem, setting = Problem(3, equal_start=True), replace(SETTING, optimizer=adamw, steps=6)
    whole = train(problem, setting).xs
    first = train(problem, replace(setting, steps=2))
    rest = train(problem, replace(setting, first=2, steps=4, resume=first.saved)).xs
    assert all(np.array_equal(a, b) for a, b in zip([*first.xs[:-1], *rest], whole, strict=True))


def test_a_lone_worker_is_the_plain_optimizer_to_the_bit() -> None:
    """Case C13, test T.8 k."""
    problem = Problem(1)
    setting = replace(SETTING, optimizer=adamw)
    together, alone = (train(problem, replace(setting, mixing=mixing)) for mixing in (AllReduce, Alone))
    assert all(np.array_equal(a, b) for a, b in zip(together.xs, alone.xs, strict=True))
    assert together.simulation.now == alone.simulation.now


class Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Linear(3, 4)
        self.heads = nn.ModuleList(nn.Linear(4, 2) for _ in range(3))
        self.double()

    def forward(self, x: Tensor, head: int) -> Tensor:
        return self.heads[head](torch.tanh(self.body(x))).square().sum()


def test_parameters_used_on_some_workers_only_get_the_weighted_mean() -> None:
    """Case D4: worker 0 uses head 0, worker 1 head 1, nobody head 2; as one process on both batches, to 1e-12."""

    def samples(t: int) -> Tensor:
        return torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(t))

    def head(t: int, i: int) -> int:
        return i if t != 2 else 0

    async def work(world: World) -> list[Tensor]:
        i = world.peers.index(world.me)
        model = Heads()
        blocks = make_blocks(model, specs_of(model), Owners(0, world.peers), lambda flat, decay: adamw([flat], decay))
        watch, gate = Watch(blocks), Gate(world, blocks, clip=1e3)
        mixing = AllReduce(Context(world=world, blocks=blocks, gate=gate, topology=None, options=NoOptions()))
        for t in range(4):

            def compute(mark: Callable[[Hashable], None], t: int = t) -> None:
                def ready(block: Block) -> None:
                    block.seal(0.5)
                    mark(block.key)

                watch.begin()
                watch.arm(ready)
                (model(samples(t)[2 * i : 2 * i + 2], head(t, i)) / 4).backward()
                watch.flush()

            async for key in world.reach(compute, Work("backward", marks={b.key: b.spec.ready for b in blocks})):
                world.spawn(mixing.update(next(b for b in blocks if b.key == key), t), "update")
            await world.sleep(10.0)
        return [p.detach().clone() for p in model.parameters()]

    results = Simulation(flat(2)).run(work)
    plain = Heads()
    optimizer = adamw(list(plain.parameters()), True)
    for t in range(4):
        x = samples(t)
        (sum((plain(x[2 * i : 2 * i + 2], head(t, i)) for i in range(2)), start=torch.zeros(())) / 4).backward()
        optimizer.step()
        optimizer.zero_grad()
    untouched = list(Heads().heads[2].parameters())
    for parameters in results.values():
        for p, q in zip(parameters, plain.parameters(), strict=True):
            torch.testing.assert_close(p, q, rtol=0, atol=1e-12)
        assert all(torch.equal(p, q) for p, q in zip(parameters[-2:], untouched, strict=True))
