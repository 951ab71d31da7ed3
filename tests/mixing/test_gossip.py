"""Gossip is the recurrence ``X(t+1) = W(t) X(t) - lr D(t)``, D at the unmixed X(t), whatever the network does."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import reference
from mixing.harness import Array, Problem, Setting, adamw, owners_of, topology_of, train
from shoal.errors import BadMessage, Diverged, UserError
from shoal.mixing import Context
from shoal.mixing.gossip import Gossip
from shoal.registry import NoOptions
from shoal.state import Block
from shoal.topology import matrix
from shoal.world import Payload, Tag, Work
from shoal.worlds.faults import Delay, Jitter

TOPOLOGIES = ["ring", "complete", "one-peer-exponential", "alternating-exponential-ring"]


@dataclass(frozen=True)
class Custom:
    """Given matrices, one per step, repeated: any weights, any direction."""

    matrices: tuple[tuple[tuple[float, ...], ...], ...]
    fixed: bool = False
    directed: bool = True

    def period(self, peers: Sequence[str], island: Mapping[str, int]) -> int:
        return len(self.matrices)

    def takes(self, peers: Sequence[str], island: Mapping[str, int], t: int, me: str) -> Mapping[str, float]:
        row = self.matrices[t % len(self.matrices)][peers.index(me)]
        return {peer: weight for peer, weight in zip(peers, row, strict=True) if weight}

    def gives(self, peers: Sequence[str], island: Mapping[str, int], t: int, me: str) -> Sequence[str]:
        return [peer for peer in peers if peer != me and me in self.takes(peers, island, t, peer)]

    def group(self, peers: Sequence[str], island: Mapping[str, int], t: int, me: str) -> None:
        return None


def doubly_stochastic(n: int, seed: int) -> tuple[tuple[float, ...], ...]:
    """A random mixture of permutations: non-uniform, asymmetric, different in every row."""
    rng = np.random.default_rng(seed)
    shares = rng.dirichlet(np.ones(4))
    w = sum(share * np.eye(n)[rng.permutation(n)] for share in shares[1:]) + shares[0] * np.eye(n)
    return tuple(map(tuple, np.asarray(w).tolist()))


def expected(
    problem: Problem, setting: Setting, optimizers: Callable[[], reference.Optimizer], lr: float
) -> list[Array]:
    owners, topology = owners_of(problem.n, setting.island_size), topology_of(setting)
    assert topology is not None
    return reference.gossip(
        problem.starts(),
        lambda t: matrix(topology, owners.peers, owners.island, t),
        problem.gradient,
        [optimizers() for _ in range(problem.n)],
        lr=lambda t: lr,
        steps=setting.steps,
        first=setting.first,
    )


def assert_close(got: Sequence[Array], want: Sequence[Array], tolerance: float = 1e-12) -> None:
    assert len(got) == len(want)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance)


def assert_same_bits(got: Sequence[Array], want: Sequence[Array]) -> None:
    assert all(np.array_equal(a, b) for a, b in zip(got, want, strict=True))


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 6, 8])
@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_gossip_is_the_recurrence(topology: str, n: int) -> None:
    """Test T.8 a, with as many steps as a period of the slowest topology has."""
    for seed in (0, 1):
        problem, setting = Problem(n, seed), Setting(topology=topology, steps=7, island_size=2, bucket_bytes=1 << 10)
        assert_close(train(problem, setting).xs, expected(problem, setting, reference.SGD, 0.1))


@pytest.mark.parametrize("topology", ["ring", "alternating-exponential-ring"])
def test_the_local_optimizer_steps_from_the_mixed_parameters(topology: str) -> None:
    problem, setting = Problem(4), Setting(topology=topology, steps=8, optimizer=adamw)
    want = expected(problem, setting, lambda: reference.AdamW(weight_decay=0.1), 0.05)
    assert_close(train(problem, setting).xs, want)


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_the_mean_of_workers_follows_the_mean_of_gradients(topology: str) -> None:
    """Test T.8 b: mean(x)(t+1) = mean(x)(t) - lr mean(d)(t)."""
    problem = Problem(6, seed=2)
    xs = train(problem, Setting(topology=topology, island_size=3)).xs
    for t, (now, then) in enumerate(pairwise(xs)):
        gradients = np.stack([problem.gradient(t, i, x) for i, x in enumerate(now)])
        np.testing.assert_allclose(then.mean(0), now.mean(0) - 0.1 * gradients.mean(0), rtol=0, atol=1e-14)


@pytest.mark.parametrize("n", [2, 3, 5])
def test_weights_of_ones_own_hold_from_the_very_first_step(n: int) -> None:
    """Defect T.7-2, test T.8 j: the first mix is made with W(0) and combined with W(0)'s weights."""
    matrices = tuple(doubly_stochastic(n, seed) for seed in range(3))
    problem, setting = Problem(n), Setting(topology=Custom(matrices), steps=5)
    xs = train(problem, setting).xs
    assert_close(xs, expected(problem, setting, reference.SGD, 0.1))
    first = np.array(matrices[0]) @ xs[0] - 0.1 * np.stack([problem.gradient(0, i, x) for i, x in enumerate(xs[0])])
    np.testing.assert_allclose(xs[1], first, rtol=0, atol=1e-14)


def test_a_run_that_begins_later_uses_that_steps_weights() -> None:
    problem, setting = Problem(4), Setting(topology="ring", first=3, steps=3)
    assert_close(train(problem, setting).xs, expected(problem, setting, reference.SGD, 0.1))


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_a_lone_worker_is_the_plain_optimizer_to_the_bit(topology: str) -> None:
    """Case C13, defect T.7-3, test T.8 k: a group of one divides by nothing and waits for nobody."""
    problem = Problem(1)
    alone = train(problem, Setting(topology=topology, optimizer=adamw))
    from shoal.mixing.none import Alone

    plain = train(problem, Setting(mixing=Alone, topology=None, optimizer=adamw))
    assert_same_bits(alone.xs, plain.xs)
    assert alone.simulation.now == plain.simulation.now


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_gossip_does_not_depend_on_bucket_size(topology: str) -> None:
    """Test T.8 f, defect T.7-7: with clipping, which is by the norm over all blocks."""
    problem, setting = Problem(4), Setting(topology=topology, clip=0.5, optimizer=adamw)
    whole, parts = (train(problem, replace(setting, bucket_bytes=size)) for size in (1 << 20, 1))
    assert_close(whole.xs, parts.xs, 1e-13)


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_neither_jitter_nor_order_nor_point_of_execution_changes_a_bit(topology: str) -> None:
    """Lessons 1 and 3."""
    problem = Problem(4, seed=3)
    setting = Setting(topology=topology, optimizer=adamw, clip=2.0, island_size=2)
    calm = train(problem, setting)
    jitter = Jitter(kind="exponential", spread=0.9, straggler="p0002", slowdown=3.0)
    for seed in range(2):
        storms: list[dict[str, Any]] = [
            {"fuzz": True, "network_seed": seed, "jitter": jitter},
            {"faults": [Delay(0.5, seed)], "network_seed": seed},
            {"expand_collectives": True, "fuzz": True, "network_seed": seed, "faults": [Delay(0.1, seed)]},
        ]
        for storm in storms:
            assert_same_bits(train(problem, replace(setting, simulation=storm)).xs, calm.xs)


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_settling_changes_no_bit_afterwards(topology: str) -> None:
    problem, setting = Problem(4), Setting(topology=topology, optimizer=adamw)
    assert_same_bits(train(problem, replace(setting, settle_each_step=True)).xs, train(problem, setting).xs)


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_a_resumed_run_has_the_same_bits(topology: str) -> None:
    """Test T.8 h; the mix in flight is launched again from the saved parameters.

    With another bucket size a ring's chunks begin elsewhere, so additions run in another order there.
    """
    problem, setting = Problem(5), Setting(topology=topology, optimizer=adamw, steps=7)
    whole = train(problem, setting)
    first = train(problem, replace(setting, steps=3))
    rest = replace(setting, first=3, steps=4, resume=first.saved)
    assert_same_bits([*first.xs[:-1], *train(problem, rest).xs], whole.xs)
    assert_close([*first.xs[:-1], *train(problem, replace(rest, bucket_bytes=1 << 20)).xs], whole.xs, 1e-13)


def test_communication_hides_behind_computation() -> None:
    """A step takes max(compute, transfer): 30 ms of computation, a pair exchange below it or twice as long."""
    steps = 100
    for transfer in (0.015, 0.060):
        cluster = {"latency": 0.0, "bandwidth": 3 * 64 / transfer}  # b + c + a fill three cache lines
        run = train(Problem(2), Setting(steps=steps, cluster=cluster, bucket_bytes=1 << 20))
        assert run.simulation.now / steps == pytest.approx(max(0.030, transfer), rel=0.05)


def test_gossip_needs_a_topology() -> None:
    context = Context(world=None, blocks=(), gate=None, topology=None, options=NoOptions())  # type: ignore[arg-type]
    with pytest.raises(UserError, match="needs a topology"):
        Gossip(context)


def test_sixteen_bit_parameters_that_agree_stay_put() -> None:
    """Case D10: the sum is in float32 and rounded once, so averaging equal values moves nothing."""

    def still(params: Sequence[torch.nn.Parameter], decay: bool) -> torch.optim.Optimizer:
        return torch.optim.SGD(params, lr=0.0)

    problem = Problem(6, equal_start=True)
    for topology in TOPOLOGIES:
        xs = train(problem, Setting(topology=topology, dtype=torch.bfloat16, optimizer=still, steps=10)).xs
        assert np.array_equal(xs[-1], xs[0])


# ---------------------------------------------------------------------------------------------------- bad peers


class Spoiler(Gossip):
    """Peer p0001 sends something else than its parameters at step 2."""

    def __init__(self, context: Context, spoil: Callable[[Tensor], tuple[Tensor, ...]]) -> None:
        super().__init__(context)
        self.spoil = spoil

    async def mix(self, block: Block, t: int, row: Any) -> Tensor:
        self.spoiled = self.world.me == "p0001" and t == 2
        return await super().mix(block, t, row)

    def body(self, block: Block) -> Payload:
        if not self.spoiled:
            return super().body(block)
        return Payload(self.spoil(block.x), block.nbytes)


def with_nan(x: Tensor) -> tuple[Tensor, ...]:
    x = x.clone()
    x[1] = torch.nan
    return (x,)


@pytest.mark.parametrize(
    ("spoil", "what"),
    [
        (with_nan, "not finite"),
        (lambda x: (x[:-1].clone(),), r"expected \(8,\) torch.float64"),
        (lambda x: (x.float(),), r"got \(8,\) torch.float32"),
        (lambda x: (x.clone(), x.clone()), "2 tensors, expected 1"),
    ],
)
def test_a_bad_message_names_the_peer_and_the_step(spoil: Callable[[Tensor], tuple[Tensor, ...]], what: str) -> None:
    """Cases D9 and D14."""
    with pytest.raises(BadMessage, match=f"peer 'p0001' at step 2: mix.*{what}"):
        train(Problem(4), Setting(mixing=partial(Spoiler, spoil=spoil), topology="ring"))


@pytest.mark.parametrize("topology", ["ring", "complete"])
def test_a_worker_whose_parameters_are_not_finite_names_itself(topology: str) -> None:
    """Before it spreads: case D14 when nothing refuses the gradient."""
    problem = Problem(4, broken={3: 2})
    with pytest.raises(Diverged, match="peer 'p0002' at step 4") as caught:
        train(problem, Setting(topology=topology, refuse_nonfinite=False))
    assert "p0002" in str(caught.value)


def test_a_worker_whose_gradient_is_not_finite_only_mixes() -> None:
    """Case D14: the others go on; the step is logged with the peer's name."""
    problem, setting = Problem(4, broken={3: 2}), Setting(topology="ring")
    run = train(problem, setting)
    clean = replace(problem, broken={})

    def gradient(t: int, i: int, x: Array) -> Array:
        return np.zeros_like(x) if problem.broken.get(t) == i else clean.gradient(t, i, x)

    owners, topology = owners_of(4, 1), topology_of(setting)
    assert topology is not None
    want = reference.awc(
        problem.starts(), lambda t: matrix(topology, owners.peers, owners.island, t), gradient, lr=0.1, steps=6
    )
    assert_close(run.xs, want)
    events = {
        peer: [event.fields for event in trace.events if event.kind == "nonfinite"]
        for peer, trace in run.simulation.traces.items()
    }
    assert events == {"p0000": [], "p0001": [], "p0002": [{"step": 3, "mine": True}], "p0003": []}


def test_steps_cannot_be_skipped() -> None:
    """Defect T.7-14: the topology's phase is the step's number, nothing that could drift."""

    class Skipper(Gossip):
        async def begin(self, t: int) -> int:
            return await super().begin(t + (t == 2))

    with pytest.raises(ValueError, match="step 3 begins, but the mixes in flight are of step 2"):
        train(Problem(2), Setting(mixing=Skipper))


# ------------------------------------------------------------------------------------------------ planted races


class Eager(Gossip):
    """Launches the next mix before the update, so that the update writes what is being sent."""

    async def update(self, block: Block, t: int) -> None:
        scale = await self.gate.scale(block, t)
        mix = self._flight.pop(block.key)
        self._launch(block, t + 1)
        await self.step(block, scale=scale, base=None if mix is None else await mix)


class Careless(Gossip):
    """Does not await its sends before it says that the mix is done."""

    async def mix(self, block: Block, t: int, row: Any) -> Tensor:
        tag = Tag("mix", t, block.key)
        for to in row.gives:
            self.world.spawn(self.world.send(to, tag, self.body(block)), "send")
        messages = {peer: await self.world.recv(tag, source=peer) for peer in row.takes if peer != self.world.me}
        return await self.world.run(partial(self._combine, block, row.takes, messages, t), Work("mix", lane="update"))


@pytest.mark.parametrize("mixing", [Eager, Careless])
def test_planted_races_are_found(mixing: type[Gossip]) -> None:
    """Lesson 2: by the borrow check, in every setting in which one of the two directions is slower."""
    from shoal.errors import Race

    def lopsided(src: int, dst: int) -> tuple[float, float]:
        return 0.001, 1e4 if src < dst else 1e3

    for n in (2, 4):
        with pytest.raises(Race, match="while it was being sent"):
            train(Problem(n), Setting(mixing=mixing, cluster={"link": lopsided}))
