"""Every error a person or a peer can cause, each with a code that ``docs/errors.md`` explains.

A `UserError` names the file, the key, the value and the mend and ends a command with exit status 2.
An error from a peer names the peer and the step. Anything else that escapes is a defect of Shoal itself.
"""

from __future__ import annotations


class ShoalError(Exception):
    """Base of all expected errors. `code` is stable and documented; `exit_status` is what a command ends with."""

    code: str = "error"
    exit_status: int = 1


class UserError(ShoalError):
    """Something a person wrote cannot be used.

    Args:
        problem: what is wrong, one sentence without a full stop.
        mend: what to write instead.
        file: path of the file, if the problem is in a file.
        key: dotted key inside the file (``"run.steps"``).
        value: the offending value, shown with `repr`.
        line: line number in `file`, if known.
    """

    code = "user"
    exit_status = 2

    def __init__(
        self,
        problem: str,
        *,
        mend: str = "",
        file: str | None = None,
        key: str | None = None,
        value: object = None,
        line: int | None = None,
    ) -> None:
        self.problem, self.mend, self.file, self.key, self.value, self.line = problem, mend, file, key, value, line
        where = file or ""
        if line is not None:
            where = f"{where}:{line}" if where else f"line {line}"
        parts = [where, key or "", problem if value is None else f"{problem}, got {value!r}"]
        text = ": ".join(part for part in parts if part)
        super().__init__(f"{text}; {mend}" if mend else text)


class PeerError(ShoalError):
    """Something went wrong with a peer: `peer` is its name, `step` the training step of the wait that noticed."""

    code = "peer"
    exit_status = 3

    def __init__(self, peer: str, step: int, why: str) -> None:
        self.peer, self.step, self.why = peer, step, why
        super().__init__(f"peer {peer!r} at step {step}: {why}")

    def __reduce__(self) -> tuple[type[PeerError], tuple[str, int, str]]:
        return type(self), (self.peer, self.step, self.why)


class PeerLost(PeerError):
    """The peer is gone: its connection closed, it went silent past the deadline, or it reported its own failure."""

    code = "peer-lost"


class BadMessage(PeerError):
    """The peer sent something that cannot be used: a wrong shape or dtype, NaN, or another model's blocks."""

    code = "bad-message"


class Late(PeerError):
    """The peer is alive, but what was waited for did not arrive within the deadline."""

    code = "late"


class LabGone(ShoalError):
    """The switch of a lab has ended, or does not answer."""

    code = "lab-gone"
    exit_status = 3


class Deadlock(ShoalError):
    """In a virtual world nothing is ready and no timer is set: nobody can ever go on. Lists who waits for what."""

    code = "deadlock"


class Race(ShoalError):
    """A tensor changed while it was being sent, or a block was written by two writers."""

    code = "race"


class Diverged(ShoalError):
    """Gradients or parameters are not finite, step after step."""

    code = "diverged"
    exit_status = 4
