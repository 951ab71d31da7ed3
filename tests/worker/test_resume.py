"""A run that was cut in two is the same run, to the bit; a checkpoint of something else is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from shoal import cluster as clusters
from shoal.errors import UserError
from shoal.job import Job
from shoal.planners import data_parallel
from shoal.worker import Outcome, Report, RunFolder, work
from shoal.worlds.simulation import Simulation

MakeJob = Callable[..., Job]
SHORT = ["schedule.name='constant'", "schedule.warmup=0", "model.args.layers=1"]


def run(
    job: Job, folder: Path, *, n: int = 3, resume: bool = False, reports: list[Report] | None = None
) -> dict[str, Outcome]:
    cluster = clusters.local(n, islands=2)
    plan = data_parallel.plan(job, cluster)
    tell = (lambda report: None) if reports is None else reports.append
    simulation = Simulation(cluster, seed=job.run.seed)
    place = RunFolder(folder).make()
    return simulation.run(lambda w: work(w, job, plan, folder=place, resume=resume, tell=tell))


def digests(outcomes: dict[str, Outcome]) -> list[str]:
    return [o.digest for o in outcomes.values()]


@pytest.mark.parametrize(
    "mixing", ['{name="all-reduce"}', '{name="gossip", topology="ring"}', '{name="none"}'], ids=["ar", "gossip", "none"]
)
@pytest.mark.parametrize("optimizer", ["accum-adamw", "adam", "sgd"])
def test_cut_in_two_is_the_same_run(make_job: MakeJob, tmp_path: Path, mixing: str, optimizer: str) -> None:
    """Parameters, optimizer state in the middle of a window, mixing, data position and dropout all continue."""
    both = [*SHORT, f"mixing={mixing}", f"optimizer.name={optimizer!r}"]
    whole = run(make_job("run.steps=7", *both), tmp_path / "whole")
    run(make_job("run.steps=3", *both), tmp_path / "cut")
    reports: list[Report] = []
    rest = run(make_job("run.steps=7", *both), tmp_path / "cut", resume=True, reports=reports)
    assert reports[0].fields["first_step"] == 3
    assert digests(rest) == digests(whole)


def test_a_checkpoint_in_passing_changes_nothing(make_job: MakeJob, tmp_path: Path) -> None:
    both = [*SHORT, "run.steps=5", 'mixing={name="gossip", topology="one-peer-exponential"}']
    never = run(make_job(*both), tmp_path / "never")
    always = run(make_job(*both, "run.checkpoint_every=1"), tmp_path / "always")
    assert digests(never) == digests(always)
    assert sorted(p.name for p in (tmp_path / "always" / "checkpoints").iterdir()) == ["step-00000004", "step-00000005"]


def test_a_damaged_checkpoint_is_passed_over(make_job: MakeJob, tmp_path: Path) -> None:
    """A power loss cut one worker's newest shard short: all go on from the one before, and end with the same bits."""
    both = [*SHORT, 'mixing={name="gossip", topology="ring"}']
    whole = run(make_job("run.steps=6", *both), tmp_path / "whole")
    run(make_job("run.steps=4", "run.checkpoint_every=2", *both), tmp_path / "cut")
    shard = tmp_path / "cut" / "checkpoints" / "step-00000004" / "worker-1.safetensors"
    shard.write_bytes(shard.read_bytes()[:-100])
    reports: list[Report] = []
    rest = run(make_job("run.steps=6", *both), tmp_path / "cut", resume=True, reports=reports)
    assert reports[0].fields["first_step"] == 2
    assert digests(rest) == digests(whole)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ("optimizer.lr=0.5", "optimizer.lr"),
        ("model.args.width=64", "model.args"),
        ("batch.size=12", "batch.size"),
        ("run.seed=3", "run.seed"),
    ],
)
def test_another_job_is_refused(make_job: MakeJob, tmp_path: Path, change: str, named: str) -> None:
    run(make_job("run.steps=2", *SHORT), tmp_path)
    with pytest.raises(UserError, match=named):
        run(make_job("run.steps=4", *SHORT, change), tmp_path, resume=True)


def test_a_finished_run_can_be_given_more_steps(make_job: MakeJob, tmp_path: Path) -> None:
    first = run(make_job("run.steps=2", *SHORT), tmp_path)
    again = run(make_job("run.steps=2", *SHORT), tmp_path, resume=True)
    assert digests(again) == digests(first)
    more = run(make_job("run.steps=3", *SHORT), tmp_path, resume=True)
    assert {o.step for o in more.values()} == {3} and digests(more) != digests(first)
