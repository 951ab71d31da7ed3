"""Small jobs of every kind that a worker meets, and ways to run them in both worlds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from shoal.job import Job, load

JOB = """
name = "small"

[model]
factory = "shoal.models.gpt:GPT"
args = { vocab = 256, layers = 2, width = 32, heads = 2, dropout = 0.1 }

[data]
source = "files"
files = ["corpus.txt"]
sequence = 16
held_out = "10 %"

[batch]
size = 13
micro = 2

[optimizer]
name = "accum-adamw"
lr = 3e-3
weight_decay = 0.1
clip = 0.5

[schedule]
warmup = 2

[mixing]
name = "all-reduce"
bucket = "16 KiB"

[run]
steps = 20
log_every = 5
threads = 1
peer_deadline = "20 s"
wait_deadline = "120 s"
"""


@pytest.fixture(scope="session")
def job_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A job of 13 samples a step in micro-batches of 2, with dropout, global clipping and tied embeddings."""
    folder = tmp_path_factory.mktemp("job")
    text = "".join(f"line {n}: {n * n % 97} fish swim in a shoal of {n % 13}\n" for n in range(2000))
    (folder / "corpus.txt").write_text(text)
    (folder / "job.toml").write_text(JOB)
    return folder / "job.toml"


@pytest.fixture(scope="session")
def make_job(job_file: Path) -> Callable[..., Job]:
    """``make_job("run.steps=3", ...)``: the small job with overrides."""
    return lambda *overrides: load(job_file, overrides)
