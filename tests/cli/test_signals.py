"""Cases C9 and C10 with real workers: whatever ends a run, nothing is left behind, and what was done is kept."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at processes in /proc")

Shoal = Callable[..., Any]
LONG = ("--steps", "100000", "--set", "run.log_every=1", "--set", "run.checkpoint_every=1000", "--json")
END_SECONDS = 10.0


class Run:
    """``shoal train`` in a process of its own, until its first step is reported."""

    def __init__(self, job: Path, *options: str) -> None:
        argv = [sys.executable, "-m", "shoal", "train", str(job), *LONG, *options]
        before = set(_shared_memory())
        self.launcher = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.lines: list[dict[str, Any]] = []
        self._shared_before = before
        assert self.launcher.stdout is not None
        for line in self.launcher.stdout:
            self.lines.append(json.loads(line))
            if self.lines[-1]["kind"] == "step":
                break
        self.workers = {peer: pid for pid, peer in _children(self.launcher.pid)}
        self._watched = {pid: os.pidfd_open(pid) for pid in self.workers.values()}

    def end(self) -> tuple[int, str]:
        """Wait for the launcher's end; returns its exit status and what it wrote to standard error."""
        out, err = self.launcher.communicate(timeout=60)
        self.lines += [json.loads(line) for line in out.splitlines() if line]
        return self.launcher.returncode, err

    def assert_nothing_is_left(self) -> None:
        for descriptor in self._watched.values():
            poll = select.poll()
            poll.register(descriptor, select.POLLIN)
            assert poll.poll(1000 * END_SECONDS), "a worker outlives its launcher"
        assert set(_shared_memory()) <= self._shared_before

    def close(self) -> None:
        for pid, descriptor in self._watched.items():
            if self.launcher.poll() is None or not select.select([descriptor], [], [], 0)[0]:
                os.kill(pid, signal.SIGKILL)
            os.close(descriptor)
        self.launcher.kill()
        self.launcher.communicate()


@pytest.fixture
def start(tiny_job: Path) -> Iterator[Callable[..., Run]]:
    runs: list[Run] = []

    def begin(*options: str) -> Run:
        runs.append(Run(tiny_job, *options))
        return runs[-1]

    yield begin
    for run in runs:
        run.close()


def test_ctrl_c_saves_says_how_to_go_on_and_ends_with_130(start: Callable[..., Run], shoal: Shoal) -> None:
    run = start()
    run.launcher.send_signal(signal.SIGINT)
    status, err = run.end()
    summary = run.lines[-1]
    assert (status, err, summary["status"]) == (130, "", "stopped"), summary
    assert Path(summary["checkpoint"], "manifest.json").exists()
    assert f"step-{summary['step']:08}" in summary["checkpoint"]
    assert summary["next"][0].endswith("--resume")
    run.assert_nothing_is_left()
    steps = summary["step"] + 2
    resumed = shoal("train", "job.toml", "--resume", "--steps", steps)
    assert resumed.status == 0 and f"from step {summary['step']}" in resumed.out


@pytest.mark.slow
@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_other_signals_do_the_same(start: Callable[..., Run], number: int, status: int) -> None:
    run = start()
    run.launcher.send_signal(number)
    ended, err = run.end()
    assert (ended, err, run.lines[-1]["status"]) == (status, "", "stopped")
    run.assert_nothing_is_left()


def test_killed_launcher_takes_its_workers_along(start: Callable[..., Run]) -> None:
    run = start()
    run.launcher.kill()
    run.assert_nothing_is_left()


@pytest.mark.slow
def test_second_signal_ends_at_once(start: Callable[..., Run]) -> None:
    run = start("--set", "run.stop_grace=600 s")
    for pid in run.workers.values():
        os.kill(pid, signal.SIGSTOP)  # they will not stop by themselves
    run.launcher.send_signal(signal.SIGINT)
    run.launcher.send_signal(signal.SIGTERM)  # two of one kind could be delivered as one
    assert run.end()[0] == 130
    run.assert_nothing_is_left()


@pytest.mark.slow
def test_term_to_one_worker_stops_all_after_the_same_step(start: Callable[..., Run]) -> None:
    """Case C10: preemption of one machine; everybody saves once, and a resume loses nothing."""
    run = start("--workers", "3")
    os.kill(run.workers["worker-2"], signal.SIGTERM)
    status, err = run.end()
    summary = run.lines[-1]
    assert (status, err, summary["status"]) == (143, "", "stopped")
    assert Path(summary["checkpoint"], "manifest.json").exists() and len(summary["digests"]) == 3
    assert len(list(Path(summary["folder"], "checkpoints").iterdir())) == 1
    run.assert_nothing_is_left()


def test_killed_worker_is_named_and_the_run_replays_to_there(start: Callable[..., Run], shoal: Shoal) -> None:
    """The others name the peer and the step; the run is replayed up to the failure."""
    run = start("--workers", "3")
    os.kill(run.workers["worker-1"], signal.SIGKILL)
    status, err = run.end()
    first, *others = err.splitlines()
    assert status == 3 and first.startswith("shoal: worker-1: killed by signal 9 (SIGKILL) after step ")
    assert others and all("peer 'worker-1' at step " in line for line in others)
    summary = run.lines[-1]
    assert summary["status"] == "failed" and Path(summary["timeline"]).exists()
    run.assert_nothing_is_left()
    ran = shoal("replay", summary["folder"])
    replayed, ending = ran.out.splitlines()
    assert (ran.status, ran.err) == (0, "") and replayed.endswith(
        "of 3 workers: losses and parameters equal to the bit"
    )
    assert "the run itself ended so: worker-1: killed by signal 9" in ending


@pytest.mark.slow
def test_silent_worker_is_given_up_after_the_jobs_deadline(start: Callable[..., Run]) -> None:
    run = start("--workers", "3", "--set", "run.peer_deadline=3 s")
    os.kill(run.workers["worker-1"], signal.SIGSTOP)
    status, err = run.end()
    assert status == 3 and "peer 'worker-1' at step " in err and "silent" in err
    run.assert_nothing_is_left()


def _children(parent: int) -> list[tuple[int, str]]:
    """(process, peer) of the workers of a launcher."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            words = (path / "cmdline").read_bytes().split(b"\0")
            if f"PPid:\t{parent}\n" in (path / "status").read_text() and b"shoal.launch.child" in words:
                found.append((int(path.name), words[words.index(b"shoal.launch.child") + 2].decode()))
        except OSError:
            continue
    return found


def _shared_memory() -> list[str]:
    return os.listdir("/dev/shm")
