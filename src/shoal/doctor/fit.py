"""Whether a job and its cluster fit this machine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from shoal.cluster import Cluster, Device
from shoal.doctor.devices import Machine
from shoal.doctor.finding import Finding, fail, note, ok, warn
from shoal.units import show_bytes


def check_job(
    name: str,
    cluster: Cluster,
    machine: Machine,
    threads: int | None,
    *,
    host: str = "",
    world_size: str = "",
) -> Iterator[Finding]:
    """Judge the devices that the cluster has on this machine: those of the host with its name, or else all, as if every
    worker were started here.

    Args:
        threads: of each worker, if the job says.
        host: this machine's name.
        world_size: of ``WORLD_SIZE``.
    """
    mine, is_mine = workers_here(cluster, host)
    where = f"on {mine[0].host}, this machine" if is_mine else "if all are started on this machine"
    counts = {kind: sum(device.kind == kind for device in mine) for kind in dict.fromkeys(d.kind for d in mine)}
    yield ok("job", f"{name}: {', '.join(f'{count} x {kind}' for kind, count in counts.items())} {where}")
    yield from _started(cluster, world_size)
    for kind, count in counts.items():
        have = [memory for found, _, memory in machine.gpus if found == kind]
        if kind != "cpu" and count > len(have):
            mend = "start the workers where the devices are (torchrun), or rehearse: --world lab, shoal simulate"
            yield warn("job", f"{count} devices of kind {kind}, and this machine has {len(have)}", mend)
        elif kind != "cpu":
            yield from _device_memory(kind, [d for d in mine if d.kind == kind], min(have))
    yield from _processors(counts.get("cpu", 0) * (threads or 1), machine)
    yield from _memory(sum(d.memory_bytes for d in mine if d.kind == "cpu"), machine, is_mine)


def workers_here(cluster: Cluster, host: str) -> tuple[Sequence[Device], bool]:
    """The devices on the host that is called like this machine, or all; and whether there is such a host."""
    mine = [device for device in cluster.devices if device.host in (host, host.partition(".")[0])]
    return (mine, True) if mine else (cluster.devices, False)


def _started(cluster: Cluster, world_size: str) -> Iterator[Finding]:
    if world_size.isdigit() and int(world_size) != len(cluster.peers):
        text = f"WORLD_SIZE is {world_size}, but the cluster has {len(cluster.peers)} devices"
        yield fail("job", text, f"start {len(cluster.peers)} workers, or name another cluster")


def _device_memory(kind: str, devices: Sequence[Device], have: float) -> Iterator[Finding]:
    """The file may say less than there is: then the plan leaves room."""
    most = max(devices, key=lambda device: device.memory_bytes)
    if most.memory_bytes > have:
        text = f"{most.name} has {show_bytes(most.memory_bytes)} in the file, a {kind} device here {show_bytes(have)}"
        yield warn("job", text, "correct the file, or measure: shoal probe --update")


def _processors(wanted: int, machine: Machine) -> Iterator[Finding]:
    if wanted > machine.granted:
        mend = "expect them to slow one another down; fewer workers, or run.threads = 1"
        yield note("job", f"{wanted} threads of workers on {machine.granted:g} processors", mend)


def _memory(wanted: float, machine: Machine, is_mine: bool) -> Iterator[Finding]:
    if wanted <= machine.memory_bytes:
        return
    text = f"its CPU devices have {show_bytes(wanted)} together in the file, this machine "
    text += show_bytes(machine.memory_bytes)
    if is_mine:
        yield warn("job", text, "correct the file, or measure: shoal probe --update")
    else:
        yield note("job", text, "fine where they are on other machines")
