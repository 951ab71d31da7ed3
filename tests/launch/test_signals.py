from __future__ import annotations

import os
import signal
import threading

import pytest

from shoal.launch.signals import StopSignals


def test_signals_are_noted_and_the_handlers_come_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with StopSignals() as signals:
        assert not signals.asked and signals.first is None
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
    assert (signals.received, signals.first) == ([signal.SIGTERM, signal.SIGINT], signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) == before


def test_ignored_signals_stay_ignored() -> None:
    """Case C9: a run under nohup outlives its terminal."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopSignals() as signals:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not signals.asked and signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("patience", [0, 1, 2])
def test_impatience_interrupts_at_the_signal_after(patience: int) -> None:
    with StopSignals(patience=patience):
        for _ in range(patience):
            os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_outside_the_main_thread_nothing_is_caught() -> None:
    before = signal.getsignal(signal.SIGINT)
    seen: list[object] = []

    def enter() -> None:
        with StopSignals():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert seen == [before]
