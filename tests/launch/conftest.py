"""Tiny worker processes for the launcher: they speak its pipe protocol and do nothing else."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

HEAD = """
import json, os, signal, sys, time
peer = sys.argv[1]
def say(**message): os.write(1, (json.dumps(message) + "\\n").encode())
def report(kind, **fields): say(report={"kind": kind, "fields": fields})
def outcome(step=3, stopped=False):
    say(outcome=dict(peer=peer, step=step, stopped=stopped, train_loss=1.5, eval_loss=None, digest="d", seconds=1.0,
                     sent_bytes=0, received_bytes=0, checkpoint=None))
def failure(text, code, exit_status, lost=None, step=None):
    say(failure=dict(peer=peer, text=text, code=code, exit_status=exit_status, lost=lost, step=step))
def hold(path): return os.open(path, os.O_WRONLY)
stop = []
signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
def wait(until=lambda: False):
    while not until(): time.sleep(0.01)
"""


class Lifeline:
    """A named pipe that processes hold open: its end comes when the last of them is gone, however it went."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        os.mkfifo(path)
        self._reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)

    def wait_until_dropped(self) -> None:
        os.set_blocking(self._reader, True)
        assert os.read(self._reader, 1) == b""

    def close(self) -> None:
        os.close(self._reader)


FakeWorker = Callable[[str], Callable[[str], Sequence[str]]]


@pytest.fixture
def lifeline(tmp_path: Path) -> Iterator[Lifeline]:
    line = Lifeline(tmp_path / "lifeline")
    yield line
    line.close()


@pytest.fixture
def fake_worker(tmp_path: Path) -> FakeWorker:
    """Body of a worker program → the `command` for `launch`; the body sees the names that `HEAD` defines."""

    def make(body: str) -> Callable[[str], Sequence[str]]:
        program = tmp_path / "fake_worker.py"
        program.write_text(HEAD + textwrap.dedent(body))
        return lambda peer: [sys.executable, "-S", str(program), peer]

    return make
