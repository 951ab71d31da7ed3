"""Run a recorded run again in the virtual world, and compare every loss and every digest to the bit.

A run's results depend on its job, its start and the order in which its workers took messages that could have come in
any order. All three are in the run folder, so a run that failed in real processes can be looked at again, at leisure,
in one process. What a killed worker could still log is enough.
"""

from __future__ import annotations

import math
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from shoal.cluster import Cluster
from shoal.errors import UserError
from shoal.job import Job
from shoal.plan import Plan
from shoal.state.checkpoint import step_folder
from shoal.trace import Event, Trace
from shoal.worker import Outcome, Report, RunFolder, work
from shoal.world import World
from shoal.worlds.simulation import Simulation, recorded_takes

What = Literal["loss", "parameters"]
Fact = tuple[int, What, str]
"""(step, what, peer); facts are compared in this order, so the first difference is the earliest one."""
_LOGGED: dict[str, tuple[What, str]] = {"step": ("loss", "loss"), "digest": ("parameters", "digest")}
"""Kind of event → what it is a fact about, and the field with its value."""
_STOPPING = "stop-"
"""Kinds of messages with which workers agree to stop begin so; a replay stops for reasons of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """A run as its folder tells it. `events`: of its newest session, per peer. `folder`: where its checkpoints are."""

    job: Job
    cluster: Cluster
    plan: Plan
    events: Mapping[str, Sequence[Event]]
    folder: RunFolder

    @property
    def first_step(self) -> int:
        """Steps that were done in the checkpoint that the run went on from; 0 if it began afresh."""
        return max((e.fields["step"] for e in self.events_of("resume")), default=0)

    @property
    def steps_done(self) -> int:
        """Steps that some worker has logged, those before `first_step` included."""
        return max((e.fields["step"] + 1 for e in self.events_of("step")), default=self.first_step)

    @property
    def losses(self) -> list[Event]:
        """The peers that were lost, as the others logged it, the first one first."""
        return sorted(self.events_of("peer-lost"), key=lambda e: (e.at, e.peer))

    def events_of(self, *kinds: str) -> list[Event]:
        """All events of these kinds, peer by peer."""
        return [event for peer in sorted(self.events) for event in self.events[peer] if event.kind in kinds]


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The first fact that is not the same. Losses are written as `float.hex`; None: the replay did not get there."""

    peer: str
    step: int
    what: What
    recorded: str
    replayed: str | None

    def __str__(self) -> str:
        recorded, replayed = _read(self.recorded), _read(self.replayed)
        what = "sum of losses" if self.what == "loss" else self.what
        return f"{self.peer}, step {self.step}: {what} {recorded} recorded, {replayed} replayed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """What a replay found. `facts` were compared; `error` is how the replay itself ended, where it failed."""

    steps: int
    workers: int
    facts: int
    difference: Difference | None
    error: Exception | None

    @property
    def equal(self) -> bool:
        return self.difference is None


def replay(
    recording: Recording,
    *,
    tell: Callable[[Report], None] = lambda report: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Replayed:
    """Run `recording` again from the same start, with its order of arrival, up to the last step that a worker logged.

    Args:
        should_stop: end early; what was not reached is then not compared.

    Raises:
        UserError: no step was logged, or the checkpoint that the run resumed from is gone.
    """
    if recording.steps_done <= recording.first_step:
        mend = "replay a run that has done a step"
        raise UserError("nothing to replay: no worker has logged a step", file=str(recording.folder.root), mend=mend)
    if not any(e.fields.get("weight", 1.0) for e in recording.events_of("step")):
        mend = "replay a run that was not in timing mode"
        raise UserError("nothing to compare: no values were computed", file=str(recording.folder.root), mend=mend)
    with tempfile.TemporaryDirectory(prefix="shoal-replay-") as scratch:
        folder = _with_start(recording, RunFolder(Path(scratch)).make())
        traces, error, ended_early = _run(recording, folder, tell, should_stop)
    recorded = _facts(recording.events)
    replayed = _facts({peer: trace.events for peer, trace in traces.items()})
    compared = [fact for fact in sorted(recorded) if not ended_early or fact in replayed]
    wrong = next((fact for fact in compared if recorded[fact] != replayed.get(fact)), None)
    steps = {step for step, what, _ in compared if what == "loss"}
    return Replayed(
        steps=len(steps),
        workers=len(recording.plan.peers),
        facts=len(compared),
        difference=None if wrong is None else _difference(wrong, recorded[wrong], replayed.get(wrong)),
        error=error,
    )


def _run(
    recording: Recording, folder: RunFolder, tell: Callable[[Report], None], should_stop: Callable[[], bool]
) -> tuple[Mapping[str, Trace], Exception | None, bool]:
    job, last = _job(recording), recording.steps_done
    takes = [e for e in recording.events_of("take") if not e.fields["message_kind"].startswith(_STOPPING)]
    simulation = Simulation(
        recording.cluster,
        seed=job.run.seed,
        threads=job.run.threads or 1,
        peer_deadline=job.run.peer_deadline,
        wait_deadline=job.run.wait_deadline,
        arrivals=recorded_takes(takes),
    )

    async def program(world: World) -> Outcome:
        def enough() -> bool:
            return should_stop() or _steps_done(simulation.traces[world.me]) >= last

        resume = recording.first_step > 0
        return await work(world, job, recording.plan, folder=folder, resume=resume, tell=tell, should_stop=enough)

    error: Exception | None = None
    try:
        simulation.run(program, peers=recording.plan.peers)
    except Exception as caught:  # a run that failed for a reason of its own does so again; the facts decide
        error = caught
    return simulation.traces, error, should_stop()


def _job(recording: Recording) -> Job:
    """The job, with checkpoints wherever the run logged a digest.

    A run that was asked to stop logs one where it stopped, and its replay, which is asked to stop as well, may stop a
    step later.
    """
    run = recording.job.run
    logged = {e.fields["step"] for e in recording.events_of("digest")}
    unplanned = [n for n in logged if n != run.steps and (not run.checkpoint_every or n % run.checkpoint_every)]
    every = math.gcd(run.checkpoint_every, *unplanned)
    return recording.job.model_copy(update={"run": run.model_copy(update={"checkpoint_every": every})})


def _with_start(recording: Recording, scratch: RunFolder) -> RunFolder:
    """A folder whose only checkpoint is the one that the run went on from: a replay leaves the run's own alone."""
    if recording.first_step > 0:
        start = step_folder(recording.folder.checkpoints, recording.first_step)
        if not start.is_dir():
            raise UserError(
                f"the run went on from step {recording.first_step}, and that checkpoint is gone",
                file=str(start),
                mend="keep more checkpoints (run.keep) in runs that shall be replayed",
            )
        shutil.copytree(start, scratch.checkpoints / start.name)
    return scratch


def _steps_done(trace: Trace) -> int:
    return next((e.fields["step"] + 1 for e in reversed(trace.events) if e.kind == "step"), 0)


def _facts(events: Mapping[str, Sequence[Event]]) -> dict[Fact, str]:
    facts: dict[Fact, str] = {}
    for peer, logged in events.items():
        for event in logged:
            if event.kind in _LOGGED:
                what, value = _LOGGED[event.kind]
                facts[event.fields["step"], what, peer] = str(event.fields[value])
    return facts


def _difference(fact: Fact, recorded: str, replayed: str | None) -> Difference:
    step, what, peer = fact
    return Difference(peer=peer, step=step, what=what, recorded=recorded, replayed=replayed)


def _read(value: str | None) -> str:
    """A hexadecimal float with its decimal value beside it; anything else as it is."""
    if value is None:
        return "not"
    try:
        return f"{float.fromhex(value)!r} ({value})" if "0x" in value else value
    except ValueError:
        return value
