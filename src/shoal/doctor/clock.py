"""Whether this machine's clock can be believed: logs of several machines are put side by side by it."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from shoal.doctor.finding import Finding, fail, note, ok, warn

_STA_UNSYNC = 0x0040
_TIMESYNC = Path("/run/systemd/timesync/synchronized")


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """Args:
    now: seconds since 1970, by this machine's clock.
    installed: when Shoal was installed here; it cannot be earlier now.
    synchronised: by the system's word; None if it does not say.
    """

    now: float
    installed: float
    synchronised: bool | None

    @classmethod
    def here(cls) -> Clock:
        kernel = _kernel_says()
        synchronised = kernel if kernel is not None else (True if _TIMESYNC.exists() else None)
        installed = Path(__file__).stat().st_mtime
        return cls(now=datetime.now(UTC).timestamp(), installed=installed, synchronised=synchronised)


def check_clock(clock: Clock) -> Iterator[Finding]:
    """Judge the clock."""
    said = f"{datetime.fromtimestamp(clock.now, UTC):%Y-%m-%d %H:%M:%S} UTC"
    mend = "start an NTP service (timedatectl set-ntp true)"
    if clock.now < clock.installed - 86400:
        yield fail("clock", f"{said}, which is before Shoal was installed", mend)
    elif clock.synchronised is False:
        text = f"{said}, not synchronised by NTP: times of several machines may not fit together"
        yield warn("clock", text, f"{mend}; --peer says how far two clocks are apart")
    elif clock.synchronised is None:
        yield note("clock", f"{said}; the system does not say whether it is synchronised")
    else:
        yield ok("clock", f"{said}, synchronised")


def _kernel_says() -> bool | None:
    """By ``adjtimex``; None where it may not be asked."""
    if sys.platform != "linux":
        return None
    with suppress(AttributeError, OSError):
        buffer = ctypes.create_string_buffer(256)  # struct timex, modes = 0: read only
        if ctypes.CDLL(None).adjtimex(buffer) >= 0:
            long = ctypes.sizeof(ctypes.c_long)
            status = ctypes.c_int.from_buffer(buffer, 5 * long)  # modes (padded), offset, freq, maxerror, esterror
            return not status.value & _STA_UNSYNC
    return None
