"""Whether a job and its cluster fit this machine, if all of its workers were started here."""

from __future__ import annotations

from collections.abc import Iterator

from shoal.cluster import Cluster
from shoal.doctor.devices import Machine
from shoal.doctor.finding import Finding, note, ok, warn
from shoal.units import show_bytes


def check_job(name: str, cluster: Cluster, machine: Machine, threads: int | None) -> Iterator[Finding]:
    """Judge `cluster`, with all of its devices on this machine.

    Args:
        threads: of each worker, if the job says.
    """
    counts: dict[str, int] = {}
    for device in cluster.devices:
        counts[device.kind] = counts.get(device.kind, 0) + 1
    yield ok("job", f"{name}: {', '.join(f'{count} x {kind}' for kind, count in counts.items())}")
    for kind, count in counts.items():
        have = sum(found == kind for found, _, _ in machine.gpus)
        if kind != "cpu" and count > have:
            mend = "start the workers where the devices are (torchrun), or rehearse: --world lab, shoal simulate"
            yield warn("job", f"{count} devices of kind {kind}, and this machine has {have}", mend)
    cores = min(float(machine.allowed), machine.quota or machine.processors)
    wanted = counts.get("cpu", 0) * (threads or 1)
    if wanted > cores:
        mend = "expect them to slow one another down; fewer workers, or run.threads = 1"
        yield note("job", f"{wanted} threads of workers on {cores:g} processors", mend)
    memory = sum(device.memory_bytes for device in cluster.devices if device.kind == "cpu")
    if memory > machine.memory_bytes:
        text = f"its CPU devices have {show_bytes(memory)} together, this machine {show_bytes(machine.memory_bytes)}"
        yield note("job", text, "fine where they are on other machines")
