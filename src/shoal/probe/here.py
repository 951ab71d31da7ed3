"""What this process knows of itself without measuring: which host it is on, how much memory there is, which device."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import torch

from shoal.errors import UserError
from shoal.probe.figures import About
from shoal.worlds.process_addresses import machine_name

LAB_HOST = "SHOAL_LAB_HOST"
"""Set where one machine plays several: the name of the host that this process is on."""


def find_device(kind: str | None, number: int) -> torch.device:
    """The device of this kind with this number; of no kind in particular: a GPU if there are any.

    Raises:
        UserError: this machine has no such device.
    """
    available = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if kind == "cpu" or (kind is None and not available):
        return torch.device("cpu")
    if kind not in (None, "cuda"):
        raise UserError("cannot be measured", key="device.kind", value=kind, mend='write "cpu" or "cuda"')
    if number >= available:
        mend = f"start at most {available} on this machine" if available else 'write kind = "cpu"'
        raise UserError(f"this machine has {available} GPUs", key="device.kind", value=f"cuda:{number}", mend=mend)
    return torch.device("cuda", number)


def about_me(device: torch.device, environment: Mapping[str, str] = os.environ) -> About:
    """Who this process is."""
    lab = environment.get(LAB_HOST)
    memory = float(torch.cuda.get_device_properties(device).total_memory) if device.type == "cuda" else None
    return About(
        host=lab or platform.node(),
        machine=lab or machine_name(),
        physical=_boot() or machine_name(),
        kind=device.type,
        named=lab is not None,
        memory_bytes=memory,
        host_memory_bytes=_memory_bytes(),
    )


def _boot() -> str:
    """Equal for all that share one kernel, and so its processors."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return ""


def _memory_bytes() -> float:
    """Main memory, or what the control group leaves of it."""
    whole = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    for limit in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError):
            whole = min(whole, float(int(Path(limit).read_text(encoding="ascii"))))
    return whole
