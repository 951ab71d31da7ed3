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

from shoal.doctor.cgroups import grant, read_file
from shoal.doctor.finding import Finding, fail, note, ok, warn
from shoal.units import show_bytes

OLDEST_TORCH, TOO_NEW_TORCH = (2, 10), (2, 14)
LEAST_MEMORY = 2e9
_NVIDIA, _DISPLAY = "0x10de", "0x03"


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What was seen of this machine.

    Args:
        build: CUDA or ROCm version that torch was built for; None for a CPU build.
        gpus: kind, name and memory bytes of each device that torch can use.
        nvidia: whether the machine has an NVIDIA GPU, whatever torch can use.
        driver: whether NVIDIA's driver is there, too.
        allowed: processors that this process may run on.
        quota: processors' worth of time that its control groups grant; None without a limit.
        threads: how many torch takes if nobody says.
        memory_bytes: of the machine, or what its control groups leave of it.
    """

    torch: str
    build: str | None
    gpus: tuple[tuple[str, str, float], ...]
    nvidia: bool
    driver: bool
    gloo: bool
    nccl: bool
    processors: int
    allowed: int
    quota: float | None
    threads: int
    memory_bytes: float

    @property
    def granted(self) -> float:
        """Processors' worth of time that this process may use."""
        return min(float(self.allowed), self.processors if self.quota is None else self.quota)

    @classmethod
    def here(cls) -> Machine:
        processors, granted = os.cpu_count() or 1, grant()
        driver = Path("/proc/driver/nvidia/version").exists() or Path("/dev/nvidiactl").exists()
        whole = _memory_bytes()
        return cls(
            torch=torch.__version__,
            build=torch.version.cuda or getattr(torch.version, "hip", None) or getattr(torch.version, "xpu", None),
            gpus=tuple(_gpus()),
            nvidia=driver or has_nvidia(_pci()),
            driver=driver,
            gloo=dist.is_available() and dist.is_gloo_available(),
            nccl=dist.is_available() and dist.is_nccl_available(),
            processors=processors,
            allowed=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else processors,
            quota=granted.processors,
            threads=torch.get_num_threads(),
            memory_bytes=whole if granted.memory_bytes is None else min(whole, granted.memory_bytes),
        )


def check_devices(machine: Machine) -> Iterator[Finding]:
    """Judge what computes here."""
    yield _torch(machine)
    for kind, name, memory in machine.gpus:
        yield ok("device", f"{kind}: {name}, {show_bytes(memory)}")
    has_cuda = any(kind == "cuda" for kind, _, _ in machine.gpus)
    if machine.nvidia and not has_cuda:
        yield _unused(machine)
    elif not machine.gpus:
        yield ok("device", "CPU only")
    yield from _engines(machine, has_cuda)
    yield from _processors(machine)
    size = show_bytes(machine.memory_bytes)
    if machine.memory_bytes < LEAST_MEMORY:
        yield warn("memory", f"{size} for everything here", "raise the container's limit, or train smaller models")
    else:
        yield ok("memory", size)


def has_nvidia(pci: Iterator[tuple[str, str]]) -> bool:
    """Whether there is an NVIDIA display or 3D controller among (vendor, class) of the devices on the PCI bus."""
    return any(vendor == _NVIDIA and kind.startswith(_DISPLAY) for vendor, kind in pci)


def _torch(machine: Machine) -> Finding:
    found = re.match(r"(\d+)\.(\d+)", machine.torch)
    version = (int(found[1]), int(found[2])) if found else (0, 0)
    text = f"torch {machine.torch}, {f'built for {machine.build}' if machine.build else 'CPU build'}"
    if OLDEST_TORCH <= version < TOO_NEW_TORCH:
        return ok("torch", text)
    wanted = f">={'.'.join(map(str, OLDEST_TORCH))},<{'.'.join(map(str, TOO_NEW_TORCH))}"
    return fail("torch", f"{text}: Shoal is made for {wanted}", f'pip install "torch{wanted}"')


def _unused(machine: Machine) -> Finding:
    """Why an NVIDIA GPU lies idle."""
    text = "there is an NVIDIA GPU, but "
    if machine.build is None:
        return warn("device", f"{text}this torch is a CPU build", "install torch for CUDA (pytorch.org says how)")
    if not machine.driver:
        mend = "install NVIDIA's driver; in a container, start it with --gpus all"
        return warn("device", f"{text}no driver for it", mend)
    mend = "does nvidia-smi see it, is CUDA_VISIBLE_DEVICES empty, is the driver as new as torch's CUDA?"
    return warn("device", f"{text}torch cannot use it", mend)


def _engines(machine: Machine, has_cuda: bool) -> Iterator[Finding]:
    have = [name for name, there in (("Gloo", machine.gloo), ("NCCL", machine.nccl)) if there]
    if not machine.gloo:
        mend = 'install a torch with it; until then keep run.collective = "ring" and run.transport = "streams"'
        yield warn("collectives", "this torch has no Gloo", mend)
    elif has_cuda and not machine.nccl:
        yield warn("collectives", "this torch has no NCCL", 'keep run.collective = "ring"')
    else:
        yield ok("collectives", ", ".join(have))


def _processors(machine: Machine) -> Iterator[Finding]:
    if machine.granted < machine.processors:
        text = f"{machine.granted:g} of {machine.processors} are granted to this process"
        yield note("processors", text, "set run.threads, whose default counts all of them, or raise the limit")
    else:
        yield ok("processors", f"{machine.processors}")
    if machine.threads > machine.granted:
        text = f"torch takes {machine.threads} threads, more than the {machine.granted:g} processors granted"
        yield note("threads", text, "set run.threads; for other programs OMP_NUM_THREADS")
    else:
        yield ok("threads", f"torch takes {machine.threads} if nobody says")


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


def _pci() -> Iterator[tuple[str, str]]:
    with suppress(OSError):
        for device in Path("/sys/bus/pci/devices").iterdir():
            yield read_file(f"{device}/vendor") or "", read_file(f"{device}/class") or ""


def _memory_bytes() -> float:
    """Of the whole machine."""
    with suppress(AttributeError, ValueError, OSError):
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    return float("inf")
