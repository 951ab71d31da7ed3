"""What else this machine lets a run do: files, disk, shared memory, TCP buffers, and whether it can have a lab."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
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
import json
from shoal.errors import ShoalError
from shoal.lab import namespaces
try:
    as_user = namespaces.become_able()
    namespaces.make(["link set lo up"], [])
    print(json.dumps({"as_user": as_user}))
except ShoalError as error:
    print(json.dumps({"problem": getattr(error, "problem", str(error)), "mend": getattr(error, "mend", "")}))
"""


@dataclass(frozen=True, slots=True)
class Lab:
    """Whether this machine can have one. Args:

    problem: why not; empty if it can.
    as_user: in a user namespace, without being root.
    """

    problem: str = ""
    mend: str = ""
    as_user: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """Args:
    open_files: the limit of this process; None without one.
    disk_bytes: free where runs go.
    writable: whether this user may write there.
    shared_bytes: size of ``/dev/shm``; None where there is none.
    tcp_bytes: the most that a receiving and a sending TCP buffer grow to; None if unknown.
    """

    open_files: int | None
    disk_bytes: float
    writable: bool
    shared_bytes: float | None
    tcp_bytes: tuple[float, float] | None
    lab: Lab

    @classmethod
    def here(cls, runs: Path) -> System:
        existing = next(folder for folder in (runs.absolute(), *runs.absolute().parents) if folder.exists())
        shared = Path("/dev/shm")
        return cls(
            open_files=_open_files(),
            disk_bytes=float(shutil.disk_usage(existing).free),
            writable=existing.is_dir() and os.access(existing, os.W_OK | os.X_OK),
            shared_bytes=float(shutil.disk_usage(shared).total) if shared.is_dir() else None,
            tcp_bytes=_tcp_bytes(),
            lab=try_lab(),
        )


def check_system(system: System, runs: Path) -> Iterator[Finding]:
    """Judge what the system lets a run do."""
    yield _disk(system, runs)
    files = "any number" if system.open_files is None else f"{system.open_files}"
    if system.open_files is not None and system.open_files < LEAST_FILES:
        mend = "ulimit -n 65536; or LimitNOFILE= of its service, nofile in /etc/security/limits.conf"
        yield warn("open files", f"{files} at most; each peer takes one", mend)
    else:
        yield ok("open files", f"{files} at most")
    if system.shared_bytes is not None:
        size = show_bytes(system.shared_bytes)
        mend = "in a container: --shm-size 2g (data loaders with workers need it)"
        yield warn("/dev/shm", size, mend) if system.shared_bytes < LEAST_SHARED else ok("/dev/shm", size)
    if system.tcp_bytes is not None:
        yield _tcp(*system.tcp_bytes)
    if system.lab.problem:
        yield note("lab", f"no lab on this machine: {system.lab.problem}", system.lab.mend)
    else:
        yield ok("lab", f"shoal train --world lab works here{', without root' if system.lab.as_user else ''}")


def _disk(system: System, runs: Path) -> Finding:
    free = f"{show_bytes(system.disk_bytes)} free for {runs}"
    if not system.writable:
        return fail("disk", f"this user may not write {runs}", "name another folder with --runs")
    if system.disk_bytes < LEAST_DISK:
        return fail("disk", free, "make room, or name another folder with --runs")
    if system.disk_bytes < LITTLE_DISK:
        return warn("disk", free, "checkpoints of a large model may not fit: set run.keep, or name another --runs")
    return ok("disk", free)


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


def try_lab(program: Sequence[str] = (sys.executable, "-c", _TRIAL)) -> Lab:
    """Really make a namespace and a TUN device, in a process of its own, with which both are gone.

    Args:
        program: that does it, and prints what came of it.
    """
    if sys.platform != "linux":
        return Lab("it needs Linux", "use a virtual machine with Linux, or shoal simulate")
    try:
        done = subprocess.run(program, capture_output=True, text=True, timeout=TRIAL_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return Lab(f"making a namespace took longer than {TRIAL_SECONDS:g} s")
    try:
        told = json.loads(done.stdout)
        return Lab(**{key: told[key] for key in ("problem", "mend", "as_user") if key in told})
    except (ValueError, TypeError):
        said = done.stderr.strip().splitlines() or [f"its trial ended with {done.returncode}"]
        return Lab(said[-1])
