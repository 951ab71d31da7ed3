"""A job that is tiny in every respect, and its plan on two local workers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from shoal import cluster as clusters
from shoal import job as jobs
from shoal.launch.prepare import Prepared
from shoal.planners import data_parallel
from shoal.worker import RunFolder

TEXT = "the quick brown fox jumps over the lazy dog, and the dog does not mind. " * 60


@pytest.fixture
def prepared(tmp_path: Path) -> Callable[..., Prepared]:
    """``prepared("run.steps=4", workers=3)``: a job with these overrides, planned, with a run folder of its own."""
    (tmp_path / "text.txt").write_text(TEXT)
    (tmp_path / "job.toml").write_text(
        """
        [model]
        args = { width = 8, layers = 1, heads = 1 }
        [data]
        source = "files"
        files = ["text.txt"]
        sequence = 16
        held_out = 0.2
        [batch]
        size = 8
        micro = 2
        [run]
        steps = 6
        log_every = 2
        eval_batches = 1
        threads = 1
        """
    )

    def make(*overrides: str, workers: int = 2) -> Prepared:
        job = jobs.load(tmp_path / "job.toml", overrides)
        cluster = clusters.local(workers)
        folder = RunFolder.fresh(tmp_path / "runs", job.name)
        return Prepared(job=job, cluster=cluster, plan=data_parallel.plan(job, cluster), folder=folder)

    return make
