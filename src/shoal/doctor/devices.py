"""What computes here: torch and its build, devices, processors and memory."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

from shoal.doctor.finding import Finding, fail, note, ok, warn
from shoal.units import show_bytes

OLDEST_TORCH, TOO_NEW_TORCH = (2, 10), (2, 14)
LEAST_MEMORY = 2e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What was seen of this machine.

    Args:
        build: CUDA or ROCm version that torch was built for; None for a CPU build.
        gpus: kind, name and memory bytes of each device that torch can use.
        nvidia: whether the system has an NVIDIA GPU, whatever torch can use.
        allowed: processors that this process may run on.
        quota: processors' worth of time that its control group grants; None without a limit.
        memory_bytes: of the machine, or what its control group leaves of it.
    """

    torch: str
    build: str | None
    gpus: tuple[tuple[str, str, float], ...]
    nvidia: bool
    gloo: bool
    nccl: bool
    processors: int
    allowed: int
    quota: float | None
    memory_bytes: float

    @classmethod
    def here(cls) -> Machine:
        processors = os.cpu_count() or 1
        return cls(
            torch=torch.__version__,
            build=torch.version.cuda or getattr(torch.version, "hip", None),
            gpus=tuple(_gpus()),
            nvidia=Path("/proc/driver/nvidia/version").exists() or Path("/dev/nvidiactl").exists(),
            gloo=dist.is_available() and dist.is_gloo_available(),
            nccl=dist.is_available() and dist.is_nccl_available(),
            processors=processors,
            allowed=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else processors,
            quota=cgroup_quota(_first("/sys/fs/cgroup/cpu.max")),
            memory_bytes=_memory_bytes(),
        )


def check_devices(machine: Machine) -> Iterator[Finding]:
    """Judge what computes here."""
    yield _torch(machine)
    for kind, name, memory in machine.gpus:
        yield ok("device", f"{kind}: {name}, {show_bytes(memory)}")
    if machine.nvidia and not any(kind == "cuda" for kind, _, _ in machine.gpus):
        why = "this torch is a CPU build" if machine.build is None else "torch cannot use it"
        yield warn("device", f"there is an NVIDIA GPU, but {why}", "install torch for CUDA, or check nvidia-smi")
    elif not machine.gpus:
        yield ok("device", "CPU only")
    if not machine.gloo:
        mend = 'install a torch with it; until then keep run.collective = "ring" and run.transport = "streams"'
        yield warn("device", "this torch has no Gloo", mend)
    if any(kind == "cuda" for kind, _, _ in machine.gpus) and not machine.nccl:
        yield warn("device", "this torch has no NCCL", 'keep run.collective = "ring"')
    yield from _processors(machine)
    size = show_bytes(machine.memory_bytes)
    if machine.memory_bytes < LEAST_MEMORY:
        yield warn("memory", f"{size} for everything here", "raise the container's limit, or train smaller models")
    else:
        yield ok("memory", size)


def cgroup_quota(text: str | None) -> float | None:
    """Processors' worth of ``cpu.max`` (``"150000 100000"`` is 1.5; ``"max 100000"`` has no limit)."""
    fields = (text or "").split()
    return int(fields[0]) / int(fields[1]) if len(fields) == 2 and fields[0].isdigit() else None


def _torch(machine: Machine) -> Finding:
    found = re.match(r"(\d+)\.(\d+)", machine.torch)
    version = (int(found[1]), int(found[2])) if found else (0, 0)
    text = f"torch {machine.torch}, {f'built for {machine.build}' if machine.build else 'CPU build'}"
    if OLDEST_TORCH <= version < TOO_NEW_TORCH:
        return ok("torch", text)
    wanted = f">={'.'.join(map(str, OLDEST_TORCH))},<{'.'.join(map(str, TOO_NEW_TORCH))}"
    return fail("torch", f"{text}: Shoal is made for {wanted}", f'pip install "torch{wanted}"')


def _processors(machine: Machine) -> Iterator[Finding]:
    granted = min(float(machine.allowed), machine.quota or machine.processors)
    if granted < machine.processors:
        text = f"{granted:g} of {machine.processors} processors are granted to this process"
        yield note("processors", text, "set run.threads, which counts all of them, or raise the limit")
    else:
        yield ok("processors", f"{machine.processors}")


def _gpus() -> Iterator[tuple[str, str, float]]:
    if torch.cuda.is_available():
        for n in range(torch.cuda.device_count()):
            seen = torch.cuda.get_device_properties(n)
            yield "cuda", seen.name, float(seen.total_memory)
    if hasattr(torch, "xpu") and torch.xpu.is_available():
        for n in range(torch.xpu.device_count()):
            seen = torch.xpu.get_device_properties(n)
            yield "xpu", seen.name, float(seen.total_memory)
    if torch.backends.mps.is_available():
        yield "mps", "Apple GPU", float(torch.mps.recommended_max_memory())


def _memory_bytes() -> float:
    whole = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")) if hasattr(os, "sysconf") else float("inf")
    limit = _first("/sys/fs/cgroup/memory.max") or ""
    return min(whole, float(limit)) if limit.isdigit() else whole


def _first(path: str) -> str | None:
    with suppress(OSError):
        return Path(path).read_text(encoding="ascii").strip()
    return None
