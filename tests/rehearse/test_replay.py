from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import pytest

from shoal.errors import UserError
from shoal.launch.logs import EventLog, last_session, read_events
from shoal.launch.prepare import Prepared
from shoal.rehearse import Recording, Rehearsal, rehearse, replay
from shoal.trace import Event
from shoal.worker import Report

Prepare = Callable[..., Prepared]


def _record(run: Prepared, **options: object) -> tuple[Recording, Rehearsal]:
    """Run in virtual time, with jitter, and read back what the logs on disk say."""
    found = rehearse(run.job, run.cluster, run.plan, folder=run.folder, **options)  # type: ignore[arg-type]
    for peer, trace in found.traces.items():
        log = EventLog(run.folder.events(peer), session=f"session {len(read_events(run.folder.events(peer)))}")
        for event in trace.events:
            log(event)
        log.close()
    logs = last_session({peer: read_events(run.folder.events(peer)) for peer in run.plan.peers})
    return _recording(run, logs), found


def _recording(run: Prepared, events: Mapping[str, Sequence[Event]]) -> Recording:
    return Recording(job=run.job, cluster=run.cluster, plan=run.plan, events=events, folder=run.folder)


def test_replay_of_a_whole_run_is_equal(prepared: Prepare) -> None:
    recording, _ = _record(prepared('simulate.jitter="exponential"', "run.checkpoint_every=3", "run.eval_every=2"))
    found = replay(recording)
    assert found.equal and (found.steps, found.workers, found.error) == (6, 2, None)
    assert found.facts == 2 * (6 + len({3, 6}))


def test_replay_writes_nothing_into_the_run(prepared: Prepare) -> None:
    run = prepared("run.checkpoint_every=3")
    recording, _ = _record(run)
    before = {path: path.stat().st_mtime_ns for path in run.folder.root.rglob("*")}
    replay(recording)
    assert {path: path.stat().st_mtime_ns for path in run.folder.root.rglob("*")} == before


def test_first_difference_is_named(prepared: Prepare) -> None:
    recording, _ = _record(prepared())
    changed = {
        peer: [
            replace(e, fields={**e.fields, "loss": (1.5).hex()}) if _is(e, peer, "worker-1", 3) else e for e in events
        ]
        for peer, events in recording.events.items()
    }
    found = replay(replace(recording, events=changed))
    assert found.difference is not None and not found.equal
    assert (found.difference.peer, found.difference.step, found.difference.what) == ("worker-1", 3, "loss")
    assert "1.5 (0x1.8000000000000p+0) recorded" in str(found.difference)


def test_another_seed_is_found_at_the_first_step(prepared: Prepare) -> None:
    recording, _ = _record(prepared())
    job = recording.job
    other = job.model_copy(update={"run": job.run.model_copy(update={"seed": 1})})
    found = replay(replace(recording, job=other))
    assert found.difference is not None and found.difference.step == 0


def test_killed_run_is_replayed_up_to_the_last_logged_step(prepared: Prepare) -> None:
    """The workers' logs end at different steps, and one in the middle of a line."""
    run = prepared()
    _record(run)
    for peer, lines in (("worker-0", 6), ("worker-1", 5)):
        path = run.folder.events(peer)
        kept = path.read_text().splitlines(keepends=True)[:lines]
        path.write_text("".join(kept) + '{"at":0.5,"kind":"st')
    logs = last_session({peer: read_events(run.folder.events(peer)) for peer in run.plan.peers})
    steps = {peer: sum(e.kind == "step" for e in events) for peer, events in logs.items()}
    assert 0 < steps["worker-1"] < steps["worker-0"] < 6
    found = replay(_recording(run, logs))
    assert found.equal and found.steps == steps["worker-0"]


def test_stopped_run_is_replayed_with_its_last_parameters(prepared: Prepare) -> None:
    run = prepared("run.steps=40", "run.log_every=1")
    told: list[Report] = []
    recording, found = _record(run, tell=told.append, should_stop=lambda: sum(r.kind == "step" for r in told) > 4)
    stopped_at = found.outcomes["worker-0"].step
    assert stopped_at < 40 and any(e.kind == "digest" for e in recording.events["worker-0"])
    again = replay(recording)
    assert again.equal and again.steps == stopped_at


def test_resumed_run_is_replayed_from_its_checkpoint(prepared: Prepare) -> None:
    run = prepared("run.steps=4", "run.checkpoint_every=4", 'schedule.name="constant"')
    _record(run)
    longer = run.job.model_copy(update={"run": run.job.run.model_copy(update={"steps": 8})})
    recording, _ = _record(replace(run, job=longer), resume=True)
    assert recording.first_step == 4
    found = replay(recording)
    assert found.equal and found.steps == 4


def test_resumed_run_without_its_checkpoint_says_so(prepared: Prepare) -> None:
    recording, _ = _record(prepared())
    resumed = {peer: [Event(peer, "resume", 0.0, {"step": 2}), *events] for peer, events in recording.events.items()}
    with pytest.raises(UserError, match="that checkpoint is gone"):
        replay(replace(recording, events=resumed))


def test_timing_mode_leaves_nothing_to_compare(prepared: Prepare) -> None:
    recording, _ = _record(prepared(), timing=True)
    with pytest.raises(UserError, match="nothing to compare"):
        replay(recording)


def test_run_without_a_step_cannot_be_replayed(prepared: Prepare) -> None:
    run = prepared()
    with pytest.raises(UserError, match="nothing to replay"):
        replay(_recording(run, {peer: [] for peer in run.plan.peers}))


def test_failure_of_the_run_itself_happens_again(prepared: Prepare) -> None:
    """A run that a defect of the model ended is replayed to the same end."""
    run = prepared("run.max_bad_steps=1", "optimizer.lr=1e30")
    recording, found = _record(run)
    if found.error is None:
        pytest.skip("this model stays finite even at such a rate")
    again = replay(recording)
    assert again.equal and type(again.error) is type(found.error)


def _is(event: Event, peer: str, wanted: str, step: int) -> bool:
    return peer == wanted and event.kind == "step" and event.fields["step"] == step
