from __future__ import annotations

import os
from pathlib import Path

import pytest

from shoal.errors import UserError
from shoal.launch.prepare import DEFAULT_WORKERS, prepare, read
from shoal.worker import RunFolder

JOB = """
name = "tiny"
[model]
args = { width = 8, layers = 1, heads = 1 }
[data]
source = "files"
files = ["text.txt"]
sequence = 16
[batch]
size = 8
"""
CLUSTER = """
[[device]]
name = "fast"
speed = "1 TFLOP/s"
memory = "1 GiB"
count = 3
[defaults.within_island]
latency = "1 ms"
bandwidth = "1 Gbps"
"""


@pytest.fixture
def job(tmp_path: Path) -> Path:
    (tmp_path / "text.txt").write_text("to be or not to be, that is the question. " * 50)
    (tmp_path / "job.toml").write_text(JOB)
    (tmp_path / "cluster.toml").write_text(CLUSTER)
    return tmp_path / "job.toml"


def test_prepared_run_reads_back_from_its_folder(job: Path, tmp_path: Path) -> None:
    made = prepare(job, overrides=["run.steps=7"], runs=tmp_path / "runs")
    found = read(made.folder)
    assert made.folder.root == tmp_path / "runs" / "tiny" / "1"
    assert (found.job, found.plan, found.cluster.peers) == (made.job, made.plan, made.cluster.peers)
    assert found.job.run.steps == 7 and len(found.cluster.peers) == DEFAULT_WORKERS
    assert found.plan.digest() == made.plan.digest()


def test_threads_are_written_down_because_the_bits_depend_on_them(job: Path, tmp_path: Path) -> None:
    cores = os.cpu_count() or 1
    assert prepare(job, workers=2, runs=tmp_path).job.run.threads == max(1, cores // 2)
    assert prepare(job, workers=2, overrides=["run.threads=3"], runs=tmp_path).job.run.threads == 3


def test_cluster_comes_from_the_option_the_job_or_this_machine(job: Path, tmp_path: Path) -> None:
    assert len(prepare(job, workers=4, runs=tmp_path).plan.peers) == 4
    assert prepare(job, cluster_file=tmp_path / "cluster.toml", runs=tmp_path).plan.peers == (
        "fast-0",
        "fast-1",
        "fast-2",
    )
    job.write_text('cluster = "cluster.toml"\n' + JOB)
    assert len(prepare(job, runs=tmp_path).plan.peers) == 3
    with pytest.raises(UserError, match=r"--workers.*leave it out"):
        prepare(job, workers=2, runs=tmp_path)


def test_missing_cluster_file_is_no_reason_to_train_alone(job: Path, tmp_path: Path) -> None:
    """Case B3."""
    with pytest.raises(UserError, match=r"nope\.toml"):
        prepare(job, cluster_file=tmp_path / "nope.toml", runs=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("mixing.name=gosip", "mixing.name"),
        ("mixing.bandwidth=3", "mixing.bandwidth"),
        ("optimizer.betta=3", "optimizer.betta"),
        ("run.transport=pigeons", "run.transport"),
        ("simulate.straggler=worker-9", "simulate.straggler"),
        ("batch.size=1", "batch"),
        ("run.stepps=1", "run.stepps"),
    ],
)
def test_mistakes_are_found_before_anything_is_written(job: Path, tmp_path: Path, override: str, key: str) -> None:
    """Case B2: every complaint names the key, and no run folder is left."""
    with pytest.raises(UserError) as caught:
        prepare(job, overrides=[override], runs=tmp_path / "runs")
    assert key in str(caught.value)
    assert not (tmp_path / "runs").exists()


def test_resume_takes_the_newest_run_of_that_name(job: Path, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    prepare(job, runs=runs)
    prepare(job, runs=runs)
    again = prepare(job, runs=runs, resume=True, overrides=["run.steps=200"])
    assert again.folder.root.name == "2" and again.resume and read(again.folder).job.run.steps == 200


def test_nothing_to_resume_is_said(job: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nothing to resume"):
        prepare(job, runs=tmp_path / "runs", resume=True)


def test_rehearsals_and_runs_never_resume_each_other(job: Path, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    assert prepare(job, runs=runs, world="virtual").folder.root == runs / "tiny-virtual" / "1"
    with pytest.raises(UserError, match="nothing to resume"):
        prepare(job, runs=runs, resume=True)


def test_wrong_number_of_started_processes(job: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"4 processes were started for a cluster of 2 devices.*start 2"):
        prepare(job, runs=tmp_path / "runs", devices=4)
    assert not (tmp_path / "runs").exists()


def test_runs_folder_that_cannot_be_made(job: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="--runs"):
        prepare(job, runs=tmp_path / "file")


def test_folder_that_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"not a run: it has no job.toml"):
        read(RunFolder(tmp_path))
