"""The whole worker in the virtual world, against a single process and against itself under disturbance."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from shoal import cluster as clusters
from shoal import ingredients as loading
from shoal import optim
from shoal.data import step_samples
from shoal.job import Job
from shoal.planners import data_parallel
from shoal.worker import Outcome, Report, work
from shoal.world import World
from shoal.worlds.faults import Delay
from shoal.worlds.simulation import Jitter, Simulation

MakeJob = Callable[..., Job]
MIXINGS = [
    'mixing={name="all-reduce", bucket="16 KiB"}',
    'mixing={name="gossip", topology="complete", bucket="16 KiB"}',
    'mixing={name="gossip", topology="ring", bucket="16 KiB"}',
    'mixing={name="gossip", topology="one-peer-exponential", bucket="16 KiB"}',
    'mixing={name="gossip", topology="alternating-exponential-ring", bucket="16 KiB"}',
]


def rehearse(job: Job, n: int, **disturbance: object) -> dict[str, Outcome]:
    cluster = clusters.local(n, islands=2 if n > 1 else 1)
    plan = data_parallel.plan(job, cluster)
    return Simulation(cluster, seed=job.run.seed, threads=1, **disturbance).run(lambda w: work(w, job, plan))  # type: ignore[arg-type]


def bits(outcomes: dict[str, Outcome]) -> list[tuple[str, float | None, float | None]]:
    return [(o.digest, o.train_loss, o.eval_loss) for o in outcomes.values()]


@pytest.mark.parametrize("mixing", MIXINGS)
def test_disturbance_leaves_the_bits_alone(make_job: MakeJob, mixing: str) -> None:
    """Jitter, random execution points, delayed messages, rings of messages: the same parameters to the bit."""
    job = make_job("run.steps=6", mixing)
    still = bits(rehearse(job, 3))
    assert bits(rehearse(job, 3)) == still
    assert bits(rehearse(job, 3, network_seed=7, fuzz=True)) == still
    assert bits(rehearse(job, 3, network_seed=8, jitter=Jitter(kind="log-normal", spread=0.5))) == still
    assert bits(rehearse(job, 3, network_seed=9, faults=[Delay(0.2, seed=9)], expand_collectives=True)) == still


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_all_reduce_is_single_process_training_on_the_joined_batch(make_job: MakeJob, n: int) -> None:
    """Field case D13: the batch is global, so the number of workers does not change what is computed."""
    overrides = ["run.steps=8", 'run.precision="float64"', "model.args.dropout=0.0", 'optimizer.name="adamw"']
    job = make_job(*overrides)
    want = single_process(job)
    kept: dict[str, torch.nn.Module] = {}
    run_keeping_models(job, n, kept)
    for model in kept.values():
        for (name, got), expected in zip(model.named_parameters(), want.parameters(), strict=True):
            assert torch.allclose(got, expected, rtol=0, atol=1e-10), name


def single_process(job: Job) -> torch.nn.Module:
    """The same training in twenty plain lines: one model, one optimizer, one batch."""
    loaded = loading.load(job)
    model = loaded.model
    groups = [
        {"params": [p for p in model.parameters() if p.ndim >= 2], "weight_decay": job.optimizer.weight_decay},
        {"params": [p for p in model.parameters() if p.ndim < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=job.optimizer.lr)
    rate = optim.learning_rate(
        job.schedule.name,
        base=job.optimizer.lr,
        steps=job.run.steps,
        warmup=job.schedule.warmup,
        floor=job.schedule.floor,
    )
    for t in range(job.run.steps):
        for group in optimizer.param_groups:
            group["lr"] = rate(t)
        ids = step_samples(job.run.seed, t, samples=len(loaded.corpus.train), size=job.batch.size)
        total, weight = loaded.loss(model, loaded.corpus.train.batch(ids))
        optimizer.zero_grad()
        (total / float(weight)).backward()
        assert job.optimizer.clip is not None
        torch.nn.utils.clip_grad_norm_(model.parameters(), job.optimizer.clip)
        optimizer.step()
    return model


def run_keeping_models(job: Job, n: int, kept: dict[str, torch.nn.Module]) -> None:
    """Run the virtual workers and keep each one's model, by watching what they load."""
    cluster = clusters.local(n)
    plan = data_parallel.plan(job, cluster)
    real = loading.load
    patch = pytest.MonkeyPatch()

    async def program(world: World) -> Outcome:
        def load(job: Job, *, device: torch.device | None = None) -> loading.Ingredients:
            loaded = real(job, device=device)
            kept[world.me] = loaded.model
            return loaded

        patch.setattr(loading, "load", load)
        return await work(world, job, plan)

    try:
        Simulation(cluster, seed=job.run.seed).run(program)
    finally:
        patch.undo()
    assert len(kept) == n


def test_evaluation_leaves_training_untouched(make_job: MakeJob) -> None:
    """Evaluating after every step changes no bit of training (T.7 defects 9 and 10)."""
    mixing = MIXINGS[2]
    never = rehearse(make_job("run.steps=6", "run.eval_every=0", mixing), 3)
    always = rehearse(make_job("run.steps=6", "run.eval_every=1", mixing), 3)
    assert [o.digest for o in never.values()] == [o.digest for o in always.values()]


def test_the_leader_reports_progress_and_losses(make_job: MakeJob) -> None:
    job = make_job("run.steps=10", "run.eval_every=5", "run.sample=8")
    cluster = clusters.local(2)
    plan = data_parallel.plan(job, cluster)
    reports: list[Report] = []
    Simulation(cluster).run(lambda w: work(w, job, plan, tell=reports.append))
    kinds = [r.kind for r in reports]
    assert kinds.count("step") == 2 and kinds.count("eval") == 2
    assert kinds[0] == "start" and kinds[-2:] == ["sample", "done"]
    last = [r for r in reports if r.kind == "step"][-1].fields
    assert last["step"] == 10 and last["loss"] > 0 and last["tokens_per_s"] > 0 and last["sent_bytes"] > 0


def test_one_peer_asked_to_stop_stops_all_after_the_same_step(make_job: MakeJob) -> None:
    """Field case C10, for every peer asked and every topology: no worker waits for one that has left."""
    for mixing in MIXINGS:
        job = make_job("run.steps=12", "model.args.layers=1", mixing)
        cluster = clusters.local(4, islands=2)
        plan = data_parallel.plan(job, cluster)
        for asked in cluster.peers:

            async def program(world: World, asked: str = asked, job: Job = job, plan: object = plan) -> Outcome:
                polls = iter(range(1000))
                return await work(
                    world,
                    job,
                    plan,  # type: ignore[arg-type]
                    should_stop=lambda: world.me == asked and next(polls) >= 3,
                )

            outcomes = Simulation(
                cluster, faults=[Delay(1e-4, seed=3)], jitter=Jitter(kind="exponential", spread=0.5)
            ).run(program)
            steps = {o.step for o in outcomes.values()}
            assert len(steps) == 1 and 3 <= steps.pop() < 12
            assert all(o.stopped for o in outcomes.values())


def test_an_agreement_that_comes_too_late_ends_with_the_run(make_job: MakeJob) -> None:
    """The last step may be done before the question has travelled: everybody still leaves, and nobody is lost."""
    job = make_job("run.steps=6", MIXINGS[2])
    cluster = clusters.local(3)
    plan = data_parallel.plan(job, cluster)
    for seed in range(4):
        for asked in cluster.peers:

            async def program(world: World, asked: str = asked) -> Outcome:
                return await work(world, job, plan, should_stop=lambda: world.me == asked and world.now() > 0.05)

            outcomes = Simulation(cluster, network_seed=seed, faults=[Delay(0.3, seed=seed)]).run(program)
            assert len({o.step for o in outcomes.values()}) == 1


def test_timing_mode_takes_the_same_virtual_time(make_job: MakeJob) -> None:
    """What numbers are computed does not change how long it takes."""
    for mixing in MIXINGS:
        job = make_job("run.steps=6", mixing)
        cluster = clusters.local(4, islands=2)
        plan = data_parallel.plan(job, cluster)
        took = []
        for numeric in (True, False):
            simulation = Simulation(cluster, numeric=numeric)
            simulation.run(lambda w, job=job, plan=plan: work(w, job, plan))
            at = [e.at for e in simulation.traces[cluster.peers[0]].events if e.kind == "step"]
            took.append(at[-1] - at[0])  # without the start: only numeric workers shake hands
        assert took[0] == pytest.approx(took[1], rel=0.05)
