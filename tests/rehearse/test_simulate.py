from __future__ import annotations

from collections.abc import Callable

import pytest

from shoal.errors import UserError
from shoal.launch.prepare import Prepared
from shoal.rehearse import rehearse
from shoal.worker import Report

Prepare = Callable[..., Prepared]


def test_rehearsal_reports_and_ends_with_outcomes_and_traces(prepared: Prepare) -> None:
    told: list[Report] = []
    run = prepared()
    found = rehearse(run.job, run.cluster, run.plan, folder=run.folder, tell=told.append)
    assert found.error is None and sorted(found.outcomes) == list(run.plan.peers)
    assert [r.fields["step"] for r in told if r.kind == "step"] == [2, 4, 6]
    assert {o.step for o in found.outcomes.values()} == {6} and found.seconds > 0
    assert all(trace.spans and trace.events for trace in found.traces.values())


def test_two_rehearsals_are_equal_to_the_bit_whatever_the_jitter(prepared: Prepare) -> None:
    plain, shaken = prepared(), prepared('simulate.jitter="exponential"', "simulate.straggler=worker-1")
    first, second = (rehearse(p.job, p.cluster, p.plan) for p in (plain, shaken))
    assert {p: o.digest for p, o in first.outcomes.items()} == {p: o.digest for p, o in second.outcomes.items()}
    assert second.seconds > first.seconds


def test_timing_mode_takes_the_time_without_the_values(prepared: Prepare) -> None:
    run = prepared("run.eval_every=0")
    found = rehearse(run.job, run.cluster, run.plan, timing=True)
    assert found.error is None and all(o.train_loss is None for o in found.outcomes.values()) and found.seconds > 0


def test_asked_to_stop_all_workers_stop_after_one_step(prepared: Prepare) -> None:
    run = prepared("run.steps=50", "run.log_every=1")
    told: list[Report] = []
    found = rehearse(
        run.job,
        run.cluster,
        run.plan,
        folder=run.folder,
        tell=told.append,
        should_stop=lambda: any(r.kind == "step" for r in told),
    )
    ends = list(found.outcomes.values())
    assert found.error is None and all(end.stopped for end in ends)
    assert len({end.step for end in ends}) == 1 and ends[0].step < 50 and ends[0].checkpoint is not None


def test_resume_continues_from_the_checkpoint(prepared: Prepare) -> None:
    halves = prepared("run.steps=4", "run.checkpoint_every=4", 'schedule.name="constant"')
    whole = prepared("run.steps=8", 'schedule.name="constant"')
    expected = rehearse(whole.job, whole.cluster, whole.plan).outcomes
    assert rehearse(halves.job, halves.cluster, halves.plan, folder=halves.folder).error is None
    longer = halves.job.model_copy(update={"run": halves.job.run.model_copy(update={"steps": 8})})
    found = rehearse(longer, halves.cluster, halves.plan, folder=halves.folder, resume=True)
    assert {p: o.digest for p, o in found.outcomes.items()} == {p: o.digest for p, o in expected.items()}


def test_failure_is_kept_with_its_worker_and_the_traces_up_to_it(prepared: Prepare) -> None:
    run = prepared()

    def tell(report: Report) -> None:
        if report.kind == "step":
            raise UserError("the disk is full")

    found = rehearse(run.job, run.cluster, run.plan, tell=tell)
    assert isinstance(found.error, UserError) and not found.outcomes
    assert any(trace.events for trace in found.traces.values())


@pytest.mark.parametrize("workers", [1, 3])
def test_any_number_of_workers(prepared: Prepare, workers: int) -> None:
    run = prepared("run.steps=2", workers=workers)
    assert len(rehearse(run.job, run.cluster, run.plan).outcomes) == workers
