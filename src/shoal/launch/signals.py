"""Ctrl-C, ``kill`` and a closed terminal ask a run to stop; they never leave it half stopped."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

_ASKED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopSignals:
    """While it is entered, INT, TERM and HUP are noted instead of ending the process.

    A signal that was ignored before (``nohup`` ignores HUP) stays ignored. Outside the main thread, where Python has
    no signals, nothing is caught.

    Args:
        patience: raise `KeyboardInterrupt` at the signal after so many; for work that runs in this very process, where
            nobody else could end it.
    """

    def __init__(self, *, patience: int | None = None) -> None:
        self.received: list[int] = []
        self._patience = patience
        self._before: dict[int, Any] = {}

    @property
    def asked(self) -> bool:
        """Whether a person or the system asked to stop."""
        return bool(self.received)

    @property
    def first(self) -> int | None:
        return self.received[0] if self.received else None

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            for number in _ASKED:
                if signal.getsignal(number) != signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.received.append(number)
        if self._patience is not None and len(self.received) > self._patience:
            raise KeyboardInterrupt
