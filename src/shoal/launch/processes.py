"""One process per device on this machine: started, watched, and gone at the end whatever happens.

The launcher keeps the store at which the workers meet, on a free loopback port. Each worker has a pipe on which
its reports come back, a pipe that tells it when the launcher is gone, and a log for what it prints. The first worker
that fails gives the others a moment to stop by themselves (they notice, name the peer and the step, and exit); what is
left then is killed. A signal to the launcher goes to all workers, which agree on a step, save once and exit.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from shoal.launch.logs import read_events
from shoal.launch.messages import Failure, Message, decode
from shoal.launch.signals import StopSignals
from shoal.worker import Outcome, Report, RunFolder
from shoal.worlds.rendezvous import Coordinator, keep_store

FAILURE_GRACE = 5.0
"""Seconds that the others have to stop by themselves after the first failure."""
EXIT_GRACE = 10.0
"""Seconds that a process has to exit once every worker has given its outcome."""
TICK = 0.05
STOPPED = 128 + signal.SIGTERM
LOG_TAIL_BYTES = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a run ended. `signal` is the one that the launcher was sent, if any; `failures` has causes first."""

    outcomes: Mapping[str, Outcome]
    failures: tuple[Failure, ...] = ()
    signal: int | None = None

    @property
    def exit_status(self) -> int:
        """0 done; 128 + signal after a signal (143 if a worker was the one that got it); else the first cause's."""
        if self.signal is not None:
            return 128 + self.signal
        if self.failures:
            return self.failures[0].exit_status
        return STOPPED if any(o.stopped for o in self.outcomes.values()) else 0


@dataclass(slots=True, kw_only=True)
class _Child:
    """One worker process as the launcher sees it."""

    peer: str
    process: subprocess.Popen[bytes]
    folder: RunFolder
    log_start: int  # where this session's part of the log begins
    pending: bytes = b""
    outcome: Outcome | None = None
    failure: Failure | None = None
    killed: bool = False
    ended: bool = False

    def ask_to_stop(self) -> None:
        os.kill(self.process.pid, signal.SIGTERM)

    def kill_group(self) -> None:
        """End the worker and whatever it started (it leads a process group of its own)."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def poll(self) -> bool:
        """Whether the process has ended; if so, its whole group is ended before the process is reaped."""
        if not self.ended and _has_exited(self.process.pid):
            self.kill_group()  # the unreaped leader still holds the group's number: nobody else can have it
            self.process.wait()
            self.ended = True
        return self.ended


def launch(
    folder: RunFolder,
    peers: Sequence[str],
    *,
    threads: int = 1,
    stop_grace: float = 30.0,
    resume: bool = False,
    tell: Callable[[Report], None] = lambda report: None,
    command: Callable[[str], Sequence[str]] | None = None,
    coordinator: Coordinator | None = None,
) -> Ending:
    """Run one worker process for each of `peers` and return when none is left.

    Args:
        folder: holds the job, the cluster and the plan; gets the logs.
        threads: per worker.
        stop_grace: seconds that the workers have after a signal; a second signal ends the wait.
        resume: the workers continue from the folder's last whole checkpoint.
        tell: gets the leader's reports as they come.
        command: peer → argument vector of its process; None is `shoal.launch.child`.
        coordinator: where the workers meet, if they cannot at a store of this process.
    """
    with StopSignals() as signals, keep_store() if coordinator is None else nullcontext(coordinator) as coordinator:
        ours = {**coordinator.environment(), "OMP_NUM_THREADS": str(threads)}
        watch = _Watch(signals, stop_grace, tell)
        try:
            for peer in peers:
                argv = command(peer) if command else child_command(folder, peer, resume=resume)
                watch.add(_start(argv, peer, folder, {**os.environ, **ours}))
            watch.until_all_ended()
        finally:
            watch.kill_all()
        return watch.ending()


def child_command(
    folder: RunFolder, peer: str, *, resume: bool, paced: bool = False, played: bool = False
) -> list[str]:
    """The argument vector of a real worker process.

    Args:
        paced: it takes the time of its device in the cluster file.
        played: a device that is not on this machine is played by the CPU.
    """
    chosen = {"--resume": resume, "--paced": paced, "--played": played}
    options = [option for option, on in chosen.items() if on]
    return [sys.executable, "-m", "shoal.launch.child", str(folder.root), peer, *options]


def log_path(folder: RunFolder, peer: str) -> Path:
    """Where a worker process's own output goes."""
    return folder.root / "logs" / f"{peer}.log"


def _start(argv: Sequence[str], peer: str, folder: RunFolder, environment: Mapping[str, str]) -> _Child:
    log = log_path(folder, peer)
    log.parent.mkdir(parents=True, exist_ok=True)
    # A signal between the process's start and its own handler would kill it unsaved: it starts with TERM held back.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        with log.open("ab") as stderr:
            log_start = stderr.tell()
            process = subprocess.Popen(
                list(argv),
                stdin=subprocess.PIPE,  # never written: its end tells the worker that the launcher is gone
                stdout=subprocess.PIPE,
                stderr=stderr,
                bufsize=0,
                env=dict(environment),
                start_new_session=True,
            )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return _Child(peer=peer, process=process, folder=folder, log_start=log_start)


class _Watch:
    """Follows the children until the last has ended."""

    def __init__(self, signals: StopSignals, stop_grace: float, tell: Callable[[Report], None]) -> None:
        self._signals, self._grace, self._tell = signals, stop_grace, tell
        self._children: list[_Child] = []
        self._selector = selectors.DefaultSelector()
        self._forwarded = False
        self._deadline: float | None = None

    def add(self, child: _Child) -> None:
        assert child.process.stdout is not None
        os.set_blocking(child.process.stdout.fileno(), False)
        self._selector.register(child.process.stdout, selectors.EVENT_READ, child)
        self._children.append(child)

    def until_all_ended(self) -> None:
        while not all(child.ended for child in self._children):
            for key, _ in self._selector.select(TICK):
                self._read(key.data)
            for child in self._children:
                if not child.ended and child.poll():
                    self._read(child)
                    self._note_end(child)
            self._pass_on_signals()
            if self._deadline is not None and time.monotonic() >= self._deadline:
                self.kill_all()

    def kill_all(self) -> None:
        """End every process that is left, at once, and close the pipes."""
        for child in self._children:
            if not child.poll():
                child.killed = True
                child.kill_group()
                child.process.wait()
                child.ended = True
                self._read(child)
                self._note_end(child)
            for pipe in (child.process.stdin, child.process.stdout):
                if pipe is not None and not pipe.closed:
                    if pipe is child.process.stdout and pipe in self._selector.get_map():
                        self._selector.unregister(pipe)
                    pipe.close()

    def ending(self) -> Ending:
        failures = [child.failure for child in self._children if child.failure is not None]
        return Ending(
            outcomes={c.peer: c.outcome for c in self._children if c.outcome is not None},
            failures=tuple(sorted(failures, key=lambda f: (not f.cause, f.code == "died", f.peer))),
            signal=self._signals.first,
        )

    def _pass_on_signals(self) -> None:
        if self._signals.asked and not self._forwarded:
            self._forwarded = True
            self._end_within(self._grace)
            for child in self._children:
                if not child.ended:
                    child.ask_to_stop()
        elif len(self._signals.received) > 1:
            self._end_within(0.0)

    def _end_within(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        self._deadline = deadline if self._deadline is None else min(self._deadline, deadline)

    def _read(self, child: _Child) -> None:
        stdout = child.process.stdout
        if stdout is None or stdout.closed:
            return
        while chunk := stdout.read(1 << 16):
            child.pending += chunk
        if chunk == b"" and stdout in self._selector.get_map():
            self._selector.unregister(stdout)
        *lines, child.pending = child.pending.split(b"\n")
        for line in lines:
            self._hear(child, decode(line))

    def _hear(self, child: _Child, message: Message | None) -> None:
        if isinstance(message, Report):
            self._tell(message)
        elif isinstance(message, Outcome):
            child.outcome = message
            if all(other.outcome is not None for other in self._children):
                self._end_within(EXIT_GRACE)
        elif isinstance(message, Failure):
            child.failure = message
            self._end_within(FAILURE_GRACE)

    def _note_end(self, child: _Child) -> None:
        if child.outcome is None and child.failure is None:
            child.failure = _death(child)
            self._end_within(FAILURE_GRACE)


def _death(child: _Child) -> Failure:
    """The failure of a process that ended without saying why."""
    code = child.process.returncode
    if child.killed:
        return Failure(peer=child.peer, code="ended", exit_status=3, text="had not stopped by itself, so it was killed")
    steps = [e.fields["step"] for e in read_events(child.folder.events(child.peer)) if e.kind == "step"]
    text = f"killed by signal {_signal_name(-code)}" if code < 0 else f"ended with exit status {code}"
    if steps:
        text = f"{text} after step {steps[-1]}"
    if last := _last_line(log_path(child.folder, child.peer), child.log_start):
        text = f"{text}; its last words: {last}"
    step = steps[-1] if steps else None
    return Failure(peer=child.peer, code="died", exit_status=3, text=text, step=step)


def _signal_name(number: int) -> str:
    """``9`` → ``"9 (SIGKILL)"``; real-time signals have no name."""
    return f"{number} ({signal.Signals(number).name})" if number in set(signal.Signals) else str(number)


def _last_line(log: Path, start: int) -> str:
    with log.open("rb") as file:
        file.seek(max(start, log.stat().st_size - LOG_TAIL_BYTES))
        lines = file.read().decode(errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def _has_exited(pid: int) -> bool:
    """Whether our child has exited, without reaping it."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
