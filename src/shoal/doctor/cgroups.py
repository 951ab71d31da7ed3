"""What control groups grant to this process: a container, or a service, has less than its machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

_ROOT = "/sys/fs/cgroup"

Read = Callable[[str], str | None]


@dataclass(frozen=True, slots=True)
class Grant:
    """`processors` is the worth of time, `memory_bytes` the limit; None without one."""

    processors: float | None = None
    memory_bytes: float | None = None


def grant(read: Read | None = None) -> Grant:
    """The least that any of the groups around this process grants, of either version of control groups.

    Args:
        read: the text of a file, None if there is none.
    """
    read = read or read_file
    quotas: list[float] = []
    limits: list[float] = []
    for controllers, folder in _folders(read("/proc/self/cgroup") or "0::/"):
        if not controllers:
            quotas += _quota((read(f"{_ROOT}{folder}/cpu.max") or "").split())
            limits += _limit(read(f"{_ROOT}{folder}/memory.max"))
        if "cpu" in controllers:
            base = f"{_ROOT}/{','.join(controllers)}{folder}"
            quotas += _quota([read(f"{base}/cpu.cfs_{what}_us") or "" for what in ("quota", "period")])
        if "memory" in controllers:
            limits += _limit(read(f"{_ROOT}/memory{folder}/memory.limit_in_bytes"))
    return Grant(min(quotas, default=None), min(limits, default=None))


def read_file(path: str) -> str | None:
    with suppress(OSError, ValueError):
        return Path(path).read_text(encoding="ascii").strip()
    return None


def _folders(own: str) -> Iterator[tuple[list[str], str]]:
    """Controllers (none: version 2), and each folder from the process's own one up to the root. In a container the
    path may be one of the host, which is not there; the root is."""
    for line in own.splitlines():
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        here = PurePosixPath(path or "/")
        for folder in (here, *here.parents):
            yield [name for name in controllers.split(",") if name], str(folder).rstrip("/")


def _quota(fields: list[str]) -> list[float]:
    """``["150000", "100000"]`` is 1.5 processors; ``"max"`` and ``"-1"`` are no limit."""
    if len(fields) == 2 and all(field.strip().isdigit() for field in fields) and int(fields[1]):
        return [int(fields[0]) / int(fields[1])]
    return []


def _limit(text: str | None) -> list[float]:
    return [float(text)] if text and text.strip().isdigit() else []
