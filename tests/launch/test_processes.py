"""The launcher with tiny fake workers: results, failures, signals, and nothing left behind."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import pytest

from shoal.launch import processes
from shoal.launch.processes import Ending, launch
from shoal.worker import Report, RunFolder

PEERS = ("a", "b", "c")
FakeWorker = Callable[[str], Callable[[str], Sequence[str]]]


class Lifeline(Protocol):
    path: str

    def wait_until_dropped(self) -> None: ...


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path / "run").make()


def test_outcomes_and_reports_come_back(folder: RunFolder, fake_worker: FakeWorker) -> None:
    told: list[Report] = []
    command = fake_worker("""
        print("noise before the protocol")
        if peer == "a":
            report("start", peers=["a", "b", "c"])
            report("step", step=1, loss=2.5)
        outcome()
    """)
    ending = launch(folder, PEERS, tell=told.append, command=command)
    assert ending.exit_status == 0 and ending.failures == ()
    assert sorted(ending.outcomes) == list(PEERS) and ending.outcomes["b"].train_loss == 1.5
    assert [r.kind for r in told] == ["start", "step"] and told[1].fields == {"step": 1, "loss": 2.5}


def test_environment_names_a_loopback_store_and_the_threads(folder: RunFolder, fake_worker: FakeWorker) -> None:
    told: list[Report] = []
    names = ("MASTER_ADDR", "TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_RUN_ID", "OMP_NUM_THREADS")
    command = fake_worker(f"report('start', **{{k: os.environ[k] for k in {names}}}); outcome()")
    for _ in range(2):
        launch(folder, ("a",), threads=3, tell=told.append, command=command)
    first, second = (report.fields for report in told)
    assert first["MASTER_ADDR"] == "127.0.0.1" and first["TORCHELASTIC_USE_AGENT_STORE"] == "True"
    assert first["OMP_NUM_THREADS"] == "3"
    assert first["TORCHELASTIC_RUN_ID"] != second["TORCHELASTIC_RUN_ID"]


def test_killed_worker_is_the_cause_and_others_name_it(folder: RunFolder, fake_worker: FakeWorker) -> None:
    """Case C9: exit status 3, the killed one first, the witnesses after it."""
    folder.events("b").write_text('{"at":0.1,"kind":"step","step":11,"loss":"0x1p0"}\n{"at":0.2,"kind":"st')
    command = fake_worker("""
        if peer == "b":
            os.kill(os.getpid(), signal.SIGKILL)
        failure("peer 'b' at step 12: connection closed", "peer-lost", 3, lost="b", step=12)
        sys.exit(3)
    """)
    ending = launch(folder, PEERS, command=command)
    assert ending.exit_status == 3
    assert [f.peer for f in ending.failures] == ["b", "a", "c"]
    assert ending.failures[0].text == "killed by signal 9 (SIGKILL) after step 11"
    assert all(f.lost == "b" and f.step == 12 for f in ending.failures[1:])


def test_survivor_that_does_not_notice_is_ended(
    folder: RunFolder, fake_worker: FakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "FAILURE_GRACE", 0.2)
    command = fake_worker("""
        if peer == "a":
            print("cannot open the data", file=sys.stderr)
            sys.exit(7)
        wait()
    """)
    ending = launch(folder, PEERS, command=command)
    assert ending.failures[0].text == "ended with exit status 7; its last words: cannot open the data"
    assert [(f.peer, f.code) for f in ending.failures[1:]] == [("b", "ended"), ("c", "ended")]
    assert ending.exit_status == 3


def test_own_error_outranks_its_consequences(folder: RunFolder, fake_worker: FakeWorker) -> None:
    command = fake_worker("""
        if peer == "c":
            failure("loss is nan at step 5", "diverged", 4); sys.exit(4)
        failure("peer 'c' at step 5: connection closed", "peer-lost", 3, lost="c", step=5); sys.exit(3)
    """)
    ending = launch(folder, PEERS, command=command)
    assert ending.exit_status == 4 and ending.failures[0].peer == "c"


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_signal_lets_all_workers_stop_by_themselves(
    folder: RunFolder, fake_worker: FakeWorker, number: int, status: int
) -> None:
    """Case C9: a signal to the launcher reaches every worker, which saves and exits."""
    command = fake_worker("""
        report("start")
        wait(lambda: stop)
        outcome(step=9, stopped=True)
    """)
    before = signal.getsignal(number)
    ready: list[Report] = []

    def tell(report: Report) -> None:
        ready.append(report)
        if len(ready) == len(PEERS):
            os.kill(os.getpid(), number)

    ending = launch(folder, PEERS, tell=tell, command=command)
    assert ending.exit_status == status and ending.failures == ()
    assert {o.step for o in ending.outcomes.values()} == {9}
    assert signal.getsignal(number) == before


def test_signal_during_start_up_is_not_lost(folder: RunFolder, fake_worker: FakeWorker) -> None:
    """Case C10: a worker that has no handler yet still stops in an orderly way."""
    command = fake_worker("wait(lambda: stop); outcome(step=0, stopped=True)")
    first = command("a")

    def start(peer: str) -> Sequence[str]:
        if peer == "c":
            os.kill(os.getpid(), signal.SIGTERM)  # before any of the workers can have come up
        return [*first[:-1], peer]

    ending = launch(folder, PEERS, command=start)
    assert ending.exit_status == 143 and ending.failures == ()


def test_second_signal_ends_the_wait(folder: RunFolder, fake_worker: FakeWorker) -> None:
    command = fake_worker("""
        report("start")
        wait(lambda: stop)
        report("stopping")
        wait()
    """)

    def tell(report: Report) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    ending = launch(folder, ("a",), tell=tell, stop_grace=1e6, command=command)
    assert ending.exit_status == 130 and [f.code for f in ending.failures] == ["ended"]


def test_workers_that_ignore_the_signal_are_killed_after_the_grace(folder: RunFolder, fake_worker: FakeWorker) -> None:
    command = fake_worker("""
        report("start")
        wait()
    """)
    ending = launch(
        folder, ("a",), tell=lambda r: os.kill(os.getpid(), signal.SIGTERM), stop_grace=0.1, command=command
    )
    assert ending.exit_status == 143 and [f.code for f in ending.failures] == ["ended"]


def test_worker_stopped_on_its_own_signal_ends_with_143(folder: RunFolder, fake_worker: FakeWorker) -> None:
    """Case C10: SIGTERM to one worker; all agree on a step and stop."""
    ending = launch(folder, PEERS, command=fake_worker("outcome(step=4, stopped=True)"))
    assert ending.exit_status == 143 and ending.signal is None


def test_process_that_does_not_exit_after_its_outcome_is_ended_without_blame(
    folder: RunFolder, fake_worker: FakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "EXIT_GRACE", 0.1)
    ending = launch(folder, PEERS, command=fake_worker("outcome(); wait()"))
    assert ending.exit_status == 0 and sorted(ending.outcomes) == list(PEERS)


def test_process_that_does_not_exit_after_its_failure_is_ended(
    folder: RunFolder, fake_worker: FakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "FAILURE_GRACE", 0.1)
    ending = launch(folder, PEERS, command=fake_worker("failure('no such file', 'user', 2); wait()"))
    assert ending.exit_status == 2 and [f.text for f in ending.failures] == ["no such file"] * 3


def test_any_signal_can_be_named(folder: RunFolder, fake_worker: FakeWorker) -> None:
    ending = launch(folder, ("a",), command=fake_worker("os.kill(os.getpid(), signal.SIGRTMIN + 1)"))
    assert ending.failures[0].text == f"killed by signal {int(signal.SIGRTMIN) + 1}"


def test_error_in_the_listener_leaves_no_process(
    folder: RunFolder, fake_worker: FakeWorker, lifeline: Lifeline
) -> None:
    told: list[Report] = []

    def tell(report: Report) -> None:
        told.append(report)
        if len(told) == 2:
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        launch(folder, ("a", "b"), tell=tell, command=fake_worker(f"hold({lifeline.path!r}); report('start'); wait()"))
    lifeline.wait_until_dropped()


def test_what_a_worker_started_ends_with_it(folder: RunFolder, fake_worker: FakeWorker, lifeline: Lifeline) -> None:
    """Case C9: a data-loading process that a worker forgot does not outlive it."""
    command = fake_worker(f"""
        import subprocess
        subprocess.Popen(["sleep", "1000"], stdout=hold({lifeline.path!r}))
        outcome()
    """)
    assert launch(folder, ("a",), command=command).exit_status == 0
    lifeline.wait_until_dropped()


def test_ending_prefers_the_launchers_signal() -> None:
    assert Ending(outcomes={}, signal=signal.SIGINT).exit_status == 130
    assert Ending(outcomes={}).exit_status == 0
