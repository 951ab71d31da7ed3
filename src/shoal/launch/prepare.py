"""From what a person typed to a run folder with the job, the cluster and the plan in it, every mistake found before a
worker starts."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from shoal import cluster as clusters
from shoal import job as jobs
from shoal.cluster import Cluster
from shoal.errors import UserError
from shoal.job import Job
from shoal.plan import Plan
from shoal.planners import data_parallel
from shoal.worker import RunFolder

DEFAULT_WORKERS = 2
"""Workers of a job that names no cluster. A fixed number: what a job computes must not depend on the machine."""

World = Literal["processes", "virtual", "lab"]
"""Runs of different worlds are kept apart, so that ``--resume`` never mistakes one for the other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A run that can start. `resume`: it continues from the newest whole checkpoint in `folder`."""

    job: Job
    cluster: Cluster
    plan: Plan
    folder: RunFolder
    resume: bool = False


def prepare(
    job_file: Path,
    *,
    overrides: Sequence[str] = (),
    cluster_file: Path | None = None,
    workers: int | None = None,
    runs: Path = Path("runs"),
    resume: bool = False,
    world: World = "processes",
    devices: int | None = None,
) -> Prepared:
    """Read the job and its cluster, check them, plan the run and write all three into its folder.

    Args:
        overrides: ``"run.steps=20"``, as given to ``--set``.
        cluster_file: instead of the one that the job names.
        workers: on this machine alone, without a cluster file.
        runs: the folder of all runs; a fresh run gets the next number under its job's name there.
        resume: take the newest run of this job instead of a fresh one.
        world: where the workers will live.
        devices: how many the cluster must have, where somebody else has started that many processes.

    Raises:
        UserError: something a person wrote cannot be used, or there is nothing to resume.
    """
    job = jobs.load(job_file, overrides)
    cluster = cluster_of(job, cluster_file, workers)
    if devices is not None and devices != len(cluster.peers):
        raise UserError(
            f"{devices} processes were started for a cluster of {len(cluster.peers)} devices",
            key="WORLD_SIZE",
            value=devices,
            mend=f"start {len(cluster.peers)}",
        )
    jobs.validate_options(job)
    job.check_peers(cluster.peers)
    job = _with_threads(job, len(cluster.peers))
    plan = _plan(job, cluster)
    folder = _folder(job, runs, resume=resume, world=world)
    prepared = Prepared(job=job, cluster=cluster, plan=plan, folder=folder, resume=resume)
    write(prepared)
    return prepared


def write(prepared: Prepared) -> None:
    """Write the job, the cluster and the plan into the run's folder, each whole or not at all."""
    texts = {
        prepared.folder.job: jobs.dump(prepared.job),
        prepared.folder.cluster: clusters.dump(prepared.cluster),
        prepared.folder.plan: prepared.plan.to_json() + "\n",
    }
    for path, text in texts.items():
        write_whole(path, text)


def write_whole(path: Path, text: str) -> None:
    """Write a file that is either whole or the one it was before. Several processes may write the same one."""
    aside = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    aside.write_text(text, encoding="utf-8")
    aside.replace(path)


def read(folder: RunFolder) -> Prepared:
    """What `write` wrote.

    Raises:
        UserError: `folder` is not the folder of a run.
    """
    for path in (folder.job, folder.cluster, folder.plan):
        if not path.is_file():
            raise UserError(
                f"not a run: it has no {path.name}", file=str(folder.root), mend="name a folder like runs/job/1"
            )
    plan = Plan.from_json(folder.plan.read_text(encoding="utf-8"))
    return Prepared(job=jobs.load(folder.job), cluster=clusters.load(folder.cluster), plan=plan, folder=folder)


def cluster_of(job: Job, file: Path | None = None, workers: int | None = None) -> Cluster:
    """The cluster in `file`, or the one that `job` names, or `workers` equal ones on this machine.

    Raises:
        UserError: the file cannot be used, or `workers` contradicts it.
    """
    named = file or (job.base / job.cluster if job.cluster is not None else None)
    if named is None:
        return clusters.local(workers or DEFAULT_WORKERS)
    if workers is not None:
        raise UserError(
            f"the cluster {named} says how many workers there are", key="--workers", value=workers, mend="leave it out"
        )
    return clusters.load(named)


def _with_threads(job: Job, workers: int) -> Job:
    """`job` with its number of threads written down: the bits depend on it, and a replay needs the same."""
    if job.run.threads is not None:
        return job
    threads = max(1, (os.cpu_count() or 1) // workers)
    return job.model_copy(update={"run": job.run.model_copy(update={"threads": threads})})


def _plan(job: Job, cluster: Cluster) -> Plan:
    """The plan; a planner's complaint about a key is pointed at the place in the job file."""
    try:
        return data_parallel.plan(job, cluster)
    except UserError as error:
        if error.file is not None or error.key is None:
            raise
        raise job.error(error.key, error.problem, mend=error.mend) from error


def _folder(job: Job, runs: Path, *, resume: bool, world: World) -> RunFolder:
    name = job.name if world == "processes" else f"{job.name}-{world}"
    try:
        if not resume:
            return RunFolder.fresh(runs, name)
        latest = RunFolder.latest(runs, name)
    except OSError as error:
        raise UserError(
            f"cannot write here: {error.strerror}", file=str(runs), key="--runs", mend="name another folder"
        ) from error
    if latest is None:
        raise UserError(
            f"nothing to resume: there is no run in {runs / name}", mend="leave out --resume, or check --runs"
        )
    return latest.make()
