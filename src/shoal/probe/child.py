"""The process of one peer of a survey: ``python -m shoal.probe.child SPEC PEER``, started by `shoal.probe.measure`.

It speaks the launcher's language on its standard output: a ``step`` report for every measurement, and a ``done`` report
with the survey, both from the leader; an outcome at the end, or the failure. TERM ends it at once, as nothing is lost
by that; when the launcher is gone, so is the peer.
"""

from __future__ import annotations

import signal  # before all else: importing torch takes seconds, in which a signal may come

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the launcher's to pass on
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})

import os
import sys
import traceback
from pathlib import Path

from shoal.launch.child import die_with_the_launcher, take_standard_output
from shoal.launch.messages import Message, encode, failure
from shoal.worker import Outcome, Report


def main(arguments: list[str]) -> int:
    """Measure; returns the process's exit status."""
    spec_file, peer = arguments
    pipe = take_standard_output()
    die_with_the_launcher()

    def say(message: Message) -> None:
        pipe.write(encode(message))

    try:
        from shoal.probe.measure import Spec
        from shoal.probe.one_peer import take_part
        from shoal.probe.protocol import Progress

        def tell_progress(at: Progress) -> None:
            say(Report(kind="step", fields={"done": at.done, "total": at.total, "text": at.text}))

        spec = Spec.from_json(Path(spec_file).read_text(encoding="utf-8"))
        found = take_part(
            peer,
            spec.peers,
            kind=spec.kinds.get(peer),
            number=spec.numbers.get(peer, 0),
            threads=spec.threads,
            settings=spec.settings,
            names=spec.names,
            pace=spec.paces.get(peer),
            tell_progress=tell_progress,
        )
    except Exception as error:
        traceback.print_exc()
        said = failure(peer, error)
        say(said)
        return said.exit_status
    if found is not None:
        say(Report(kind="done", fields=found.to_json()))
    say(_outcome(peer))
    return 0


def _outcome(peer: str) -> Outcome:
    """Says to the launcher that this process has done its part; a survey trains nothing, so there is no more to it."""
    return Outcome(
        peer=peer,
        step=0,
        stopped=False,
        train_loss=None,
        eval_loss=None,
        digest="",
        seconds=0.0,
        sent_bytes=0,
        received_bytes=0,
    )


if __name__ == "__main__":
    status = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # all has been said; an engine that was broken off in a call would abort an ordinary exit
