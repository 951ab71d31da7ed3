from __future__ import annotations

import pytest

from shoal.errors import Diverged, PeerLost, UserError
from shoal.launch.messages import Failure, decode, encode, failure
from shoal.worker import Outcome, Report

OUTCOME = Outcome(
    peer="a",
    step=3,
    stopped=False,
    train_loss=2.5,
    eval_loss=None,
    digest="d",
    seconds=1.0,
    sent_bytes=7,
    received_bytes=8,
)


@pytest.mark.parametrize(
    "message", [Report(kind="step", fields={"step": 1}), OUTCOME, failure("a", PeerLost("b", 4, "connection closed"))]
)
def test_messages_survive_the_pipe(message: Report | Outcome | Failure) -> None:
    line = encode(message)
    assert line.endswith(b"\n") and line.count(b"\n") == 1
    assert decode(line) == message


@pytest.mark.parametrize("line", [b"", b"hello", b"3", b"[]", b"{}", b'{"report": 3}', b'{"other": {}}', b"\xff\xfe"])
def test_what_is_no_message_is_none(line: bytes) -> None:
    assert decode(line) is None


def test_failures_keep_what_decides_the_exit_status() -> None:
    lost = failure("a", PeerLost("b", 4, "connection closed"))
    assert (lost.exit_status, lost.lost, lost.step, lost.cause) == (3, "b", 4, False)
    user = failure("a", UserError("no such file", file="x.txt"))
    assert (user.exit_status, user.code, user.cause) == (2, "user", True)
    assert failure("a", Diverged("loss is nan")).exit_status == 4
    crash = failure("a", ValueError("two\nlines"))
    assert (crash.exit_status, crash.code, crash.text, crash.cause) == (1, "crash", "ValueError: two lines", True)
