"""A job in a virtual world: the workers' own code, on the cluster's predicted speeds and links, in this one process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from shoal.cluster import Cluster
from shoal.job import Job
from shoal.plan import Plan
from shoal.trace import Trace
from shoal.worker import Outcome, Report, RunFolder, work
from shoal.world import World
from shoal.worlds.faults import Jitter
from shoal.worlds.simulation import Simulation


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
    """What a rehearsal came to. `traces` hold each worker's spans and events, also where it failed.

    `error` is what ended it early: a `ShoalError`, whatever the model's code raised, or Ctrl-C; `failed` is the worker
    that raised it, or None where it was none of them.
    """

    outcomes: Mapping[str, Outcome]
    traces: Mapping[str, Trace]
    seconds: float
    error: Exception | KeyboardInterrupt | None = None
    failed: str | None = None


def rehearse(
    job: Job,
    cluster: Cluster,
    plan: Plan,
    *,
    timing: bool = False,
    folder: RunFolder | None = None,
    resume: bool = False,
    tell: Callable[[Report], None] = lambda report: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Rehearsal:
    """Run `job` on a virtual `cluster`.

    Args:
        timing: compute no values, only how long everything takes.
        folder: where checkpoints go; None keeps none.
        resume: continue from the folder's newest whole checkpoint.
        tell: gets the leader's reports as they come.
        should_stop: polled by every worker; all stop after the same step.
    """
    simulation = Simulation(
        cluster,
        numeric=not timing,
        seed=job.run.seed,
        threads=job.run.threads or 1,
        jitter=jitter(job),
        peer_deadline=job.run.peer_deadline,
        wait_deadline=job.run.wait_deadline,
    )

    raised: list[tuple[Exception, str]] = []

    async def program(world: World) -> Outcome:
        try:
            return await work(world, job, plan, folder=folder, resume=resume, tell=tell, should_stop=should_stop)
        except Exception as error:
            raised.append((error, world.me))
            raise

    outcomes: Mapping[str, Outcome] = {}
    error: Exception | KeyboardInterrupt | None = None
    try:
        outcomes = simulation.run(program, peers=plan.peers)
    except (Exception, KeyboardInterrupt) as caught:
        error = caught
    return Rehearsal(
        outcomes=outcomes,
        traces=simulation.traces,
        seconds=simulation.now,
        error=error,
        failed=next((peer for known, peer in raised if known is error), None),
    )


def jitter(job: Job) -> Jitter:
    """How computations depart from their predicted times, as the job's ``[simulate]`` says."""
    table = job.simulate
    return Jitter(
        kind=table.jitter, spread=table.spread, straggler=table.straggler, slowdown=table.slowdown, seed=table.seed
    )
