"""What else this machine lets a run do: files, disk, shared memory, TCP buffers, and whether it can have a lab."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from shoal.doctor.finding import Finding, fail, note, ok, warn
from shoal.units import show_bytes

LEAST_FILES = 1024
LEAST_DISK, LITTLE_DISK = 1e9, 10e9
LEAST_SHARED = 256e6
LONG_FAT = 100e6 / 8 * 0.2
"""Bytes under way on 100 Mbit/s at 100 ms one way: what a TCP buffer should hold, twice for its bookkeeping."""
TRIAL_SECONDS = 20.0
_TRIAL = """
from shoal.errors import ShoalError
from shoal.lab import namespaces
try:
    namespaces.become_able()
    namespaces.make(["link set lo up"], [])
    print("ok")
except ShoalError as error:
    print(error)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """Args:
    open_files: the limit of this process; None without one.
    disk_bytes: free where runs go.
    shared_bytes: size of ``/dev/shm``; None where there is none.
    tcp_bytes: the most that a receiving and a sending TCP buffer grow to; None if unknown.
    lab: ``"ok"``, or why there can be no lab.
    """

    open_files: int | None
    disk_bytes: float
    shared_bytes: float | None
    tcp_bytes: tuple[float, float] | None
    lab: str

    @classmethod
    def here(cls, runs: Path) -> System:
        existing = next(folder for folder in (runs.absolute(), *runs.absolute().parents) if folder.exists())
        shared = Path("/dev/shm")
        return cls(
            open_files=_open_files(),
            disk_bytes=float(shutil.disk_usage(existing).free),
            shared_bytes=float(shutil.disk_usage(shared).total) if shared.is_dir() else None,
            tcp_bytes=_tcp_bytes(),
            lab=_lab(),
        )


def check_system(system: System, runs: Path) -> Iterator[Finding]:
    """Judge what the system lets a run do."""
    free = f"{show_bytes(system.disk_bytes)} free for {runs}"
    if system.disk_bytes < LEAST_DISK:
        yield fail("disk", free, "make room, or name another folder with --runs")
    elif system.disk_bytes < LITTLE_DISK:
        yield warn("disk", free, "checkpoints of a large model may not fit: set run.keep, or name another --runs")
    else:
        yield ok("disk", free)
    if system.open_files is not None and system.open_files < LEAST_FILES:
        yield warn("open files", f"{system.open_files} at most; each peer takes one", "ulimit -n 65536")
    else:
        yield ok("open files", f"{system.open_files or 'any number'} at most")
    if system.shared_bytes is not None and system.shared_bytes < LEAST_SHARED:
        mend = "in a container: --shm-size 2g (data loaders with workers need it)"
        yield warn("/dev/shm", show_bytes(system.shared_bytes), mend)
    if system.tcp_bytes is not None:
        yield _tcp(*system.tcp_bytes)
    if system.lab == "ok":
        yield ok("lab", "shoal train --world lab works here")
    else:
        yield note("lab", f"no lab on this machine: {system.lab}")


def _tcp(receive: float, send: float) -> Finding:
    text = f"buffers grow to {show_bytes(receive)} (receive) and {show_bytes(send)} (send)"
    if min(receive, send) >= 2 * LONG_FAT or sys.platform != "linux":
        return ok("tcp", text)
    return note(
        "tcp",
        f"{text}: too little for 100 Mbit/s at 100 ms",
        f"if a far link is slow: sysctl -w net.ipv4.tcp_rmem='4096 131072 {16 << 20}'"
        f" net.ipv4.tcp_wmem='4096 65536 {16 << 20}'",
    )


def _tcp_bytes() -> tuple[float, float] | None:
    with suppress(OSError, ValueError, IndexError):
        most = [
            float(Path(f"/proc/sys/net/ipv4/tcp_{way}").read_text(encoding="ascii").split()[2])
            for way in ("rmem", "wmem")
        ]
        return most[0], most[1]
    return None


def _open_files() -> int | None:
    try:
        import resource  # does not exist on every platform
    except ImportError:
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft


def _lab() -> str:
    """Really make a namespace and a TUN device, in a process of its own, with which both are gone."""
    if sys.platform != "linux":
        return "it needs Linux"
    try:
        done = subprocess.run(
            [sys.executable, "-c", _TRIAL], capture_output=True, text=True, timeout=TRIAL_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return f"making a namespace took longer than {TRIAL_SECONDS:g} s"
    return done.stdout.strip() or done.stderr.strip().splitlines()[-1]
