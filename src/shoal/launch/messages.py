"""What a worker process tells its launcher: reports, its outcome or its failure, as JSON lines on a pipe."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from shoal.errors import PeerError, ShoalError
from shoal.worker import Outcome, Report


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why a worker did not end with an outcome.

    Args:
        peer: the worker that failed.
        text: one line for a person.
        code: of the `ShoalError`; ``"crash"`` for any other exception, ``"died"`` for a process that went without a
            word, ``"ended"`` for one that the launcher had to end.
        exit_status: what a command that meets this failure ends with.
        lost: the peer that this failure is about, if it only passes on another one's loss.
        step: the step at which it noticed.
    """

    peer: str
    text: str
    code: str
    exit_status: int
    lost: str | None = None
    step: int | None = None

    @property
    def cause(self) -> bool:
        """Whether this failure can be the reason of the others, and is not only their consequence."""
        return self.lost is None and self.code != "ended"


Message = Report | Outcome | Failure
_KINDS: dict[str, type[Report] | type[Outcome] | type[Failure]] = {
    "report": Report,
    "outcome": Outcome,
    "failure": Failure,
}


def failure(peer: str, error: BaseException) -> Failure:
    """The failure that `error` is, seen by `peer`."""
    text = " ".join(str(error).split())  # one line, whatever it was
    if isinstance(error, PeerError):
        return Failure(
            peer=peer, text=text, code=error.code, exit_status=error.exit_status, lost=error.peer, step=error.step
        )
    if isinstance(error, ShoalError):
        return Failure(peer=peer, text=text, code=error.code, exit_status=error.exit_status)
    return Failure(peer=peer, text=f"{type(error).__name__}: {text}", code="crash", exit_status=1)


def encode(message: Message) -> bytes:
    """One line, with its line end."""
    kind = next(name for name, cls in _KINDS.items() if isinstance(message, cls))
    return json.dumps({kind: asdict(message)}, default=str).encode() + b"\n"


def decode(line: bytes) -> Message | None:
    """The message in `line`, or None where there is none (what user code printed before the pipe was ours)."""
    try:
        raw = json.loads(line)
        kind, fields = next(iter(raw.items()))
        return _KINDS[kind](**fields)
    except (ValueError, KeyError, TypeError, AttributeError, StopIteration):
        return None
