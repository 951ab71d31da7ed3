"""One thing that was looked at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "note", "warn", "fail"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What was found: a line for a person.

    Args:
        check: what was looked at.
        state: ``"ok"``; ``"note"``: good to know; ``"warn"``: may go wrong; ``"fail"``: will.
        text: what was seen.
        mend: what to do about it; every ``"fail"`` and ``"warn"`` has one.
    """

    check: str
    state: State
    text: str
    mend: str = ""

    def line(self) -> str:
        return f"{self.state:<5} {self.check:<12} {self.text}{f'; {self.mend}' if self.mend else ''}"


def ok(check: str, text: str) -> Finding:
    return Finding(check=check, state="ok", text=text)


def note(check: str, text: str, mend: str = "") -> Finding:
    return Finding(check=check, state="note", text=text, mend=mend)


def warn(check: str, text: str, mend: str) -> Finding:
    return Finding(check=check, state="warn", text=text, mend=mend)


def fail(check: str, text: str, mend: str) -> Finding:
    return Finding(check=check, state="fail", text=text, mend=mend)
