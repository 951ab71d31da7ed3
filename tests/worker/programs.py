"""Programs that processes of a test run; they are found by name, so they live in a module of their own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from shoal import cluster as clusters
from shoal.job import load
from shoal.planners import data_parallel
from shoal.worker import Outcome, RunFolder, work
from shoal.world import World


@dataclass(frozen=True, slots=True)
class Train:
    """``await Train(...)(world)`` is one worker's whole run, planned where it runs."""

    job: Path
    overrides: tuple[str, ...]
    workers: int
    islands: int = 2
    folder: Path | None = None
    resume: bool = False

    async def __call__(self, world: World) -> Outcome:
        job = load(self.job, self.overrides)
        plan = data_parallel.plan(job, clusters.local(self.workers, islands=self.islands))
        folder = None if self.folder is None else RunFolder(self.folder).make()
        return await work(world, job, plan, folder=folder, resume=self.resume)
