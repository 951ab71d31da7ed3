"""The process of one worker: ``python -m shoal.launch.child RUNFOLDER PEER [--resume] [--paced] [--played]``,
started by the launcher.

Standard output is the pipe on which reports, the outcome or the failure go back; what the model's own code prints goes
to the log with everything else. TERM asks for a stop at the next step. When the launcher is gone, so is the worker.
"""

# ruff: noqa: E402 - the signal must be caught before the seconds that importing torch takes

from __future__ import annotations

import signal

_asked: list[int] = []
if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda number, frame: _asked.append(number))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the launcher's to pass on
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})

import ctypes
import os
import sys
import threading
import traceback
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from shoal.launch.messages import Message, encode, failure

PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> int:
    """Run the worker; returns the process's exit status."""
    root, peer, *options = arguments
    pipe = take_standard_output()
    die_with_the_launcher()

    def say(message: Message) -> None:
        pipe.write(encode(message))

    try:
        from shoal.launch.prepare import read
        from shoal.launch.session import run_session, torch_device
        from shoal.worker import RunFolder
        from shoal.worlds.rendezvous import from_environment

        prepared = replace(read(RunFolder(Path(root))), resume="--resume" in options)
        coordinator = from_environment()
        outcome = run_session(
            prepared,
            peer,
            coordinator=coordinator,
            session=coordinator.attempt,
            device=torch_device(prepared, peer, played="--played" in options),
            paced="--paced" in options,
            tell=say,
            should_stop=lambda: bool(_asked),
        )
    except Exception as error:
        traceback.print_exc()
        said = failure(peer, error)
        say(said)
        return said.exit_status
    say(outcome)
    return 0


def take_standard_output() -> BinaryIO:
    """The pipe to the launcher; from now on what is printed goes to the log."""
    pipe = os.fdopen(os.dup(sys.stdout.fileno()), "wb", buffering=0)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    return pipe


def die_with_the_launcher() -> None:
    """End this process when the launcher has ended, even by kill -9: there is nobody left to report to or to stop it.

    The kernel does it on Linux; elsewhere, or if the launcher was gone already, the end of standard input says so.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    threading.Thread(target=_await_end_of_input, name="launcher", daemon=True).start()


def _await_end_of_input() -> None:
    while os.read(0, 1):
        pass
    os._exit(1)


if __name__ == "__main__":
    status = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # all has been said; an engine that was broken off in a call would abort an ordinary exit
