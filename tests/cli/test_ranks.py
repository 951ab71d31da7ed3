"""Workers that somebody else has started, with what torchrun and Slurm scripts set."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Shoal = Callable[..., Any]


def _start(rank: int, size: int, port: int, job: Path, *options: str) -> subprocess.Popen[str]:
    place = {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank)}
    environment = {**os.environ, **place, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    argv = [sys.executable, "-m", "shoal", "train", str(job), "--json", *options]
    return subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.fixture
def port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.mark.slow
def test_ranks_are_the_workers_and_the_first_one_reports(shoal: Shoal, tiny_job: Path, port: int) -> None:
    ranks = [_start(rank, 2, port, tiny_job) for rank in (0, 1)]
    (out, err), (silent, other_err) = (rank.communicate(timeout=120) for rank in ranks)
    assert [rank.returncode for rank in ranks] == [0, 0], err + other_err
    assert (err, silent, other_err) == ("", "", "")
    lines = [json.loads(line) for line in out.splitlines()]
    assert lines[0]["kind"] == "start" and lines[-1]["status"] == "done"
    assert "2 workers: losses and parameters equal to the bit" in shoal("replay", "runs/tiny/1").out


@pytest.mark.slow
def test_wrong_number_of_ranks_is_said_by_all(tiny_job: Path, port: int) -> None:
    """Case A12: nobody waits for a rank that will not come."""
    ranks = [_start(rank, 3, port, tiny_job) for rank in range(3)]
    for rank in ranks:
        _, err = rank.communicate(timeout=120)
        assert rank.returncode == 2 and "3 processes were started for a cluster of 2 devices" in err
    assert not Path("runs").exists()


@pytest.mark.slow
def test_killed_rank_is_named_by_the_others(tiny_job: Path, port: int) -> None:
    ranks = [_start(rank, 2, port, tiny_job, "--steps", "100000", "--set", "run.log_every=1") for rank in (0, 1)]
    assert ranks[0].stdout is not None
    next(line for line in ranks[0].stdout if json.loads(line)["kind"] == "step")
    ranks[1].send_signal(signal.SIGKILL)
    out, err = ranks[0].communicate(timeout=120)
    ranks[1].communicate()
    assert ranks[0].returncode == 3 and err.startswith("shoal: worker-0: peer 'worker-1' at step ")
    assert json.loads(out.splitlines()[-1])["status"] == "failed"
