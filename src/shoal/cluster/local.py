"""This machine as a cluster, for runs without a cluster file."""

from __future__ import annotations

from shoal.cluster.build import expand
from shoal.cluster.cluster import Cluster, Device, Host, Island, Links, Rule
from shoal.errors import UserError

FLOPS = 20e9
MEMORY_BYTES = 4 * 1024.0**3
MEMORY_BANDWIDTH = 10e9
LOOPBACK = Rule(latency_s=1e-4, bandwidth_bytes_per_s=1e9)
"""Assumptions, not measurements: one modest CPU core, its share of the memory, and messages through loopback."""


def local(count: int, *, islands: int = 1) -> Cluster:
    """`count` equal CPU workers on this machine, named ``worker-0`` …, in `islands` groups of almost equal size.

    The islands are only names that topologies can go by: all links are loopback. One worker attains 20 GFLOP/s and has
    4 GiB of memory at 10 GB/s; a message takes 0.1 ms and 1 GB/s. These are assumptions; write a cluster file to
    predict other machines.

    Raises:
        UserError: `count` or `islands` is less than one, or there are more islands than workers.
    """
    if count < 1:
        raise UserError("a cluster needs at least one worker", value=count, mend="write 1 or more")
    if not 1 <= islands <= count:
        raise UserError("no such number of islands", value=islands, mend=f"write 1 to {count}, the number of workers")
    sizes = [count // islands + (n < count % islands) for n in range(islands)]
    island_names, hosts = expand("island", islands), expand("host", islands)
    places = [host for host, size in zip(hosts, sizes, strict=True) for _ in range(size)]
    width = len(str(count - 1))
    return Cluster(
        name="local",
        devices=tuple(_worker(f"worker-{n:0{width}d}", host) for n, host in enumerate(places)),
        hosts={
            host: Host(
                name=host,
                island=island,
                up_bytes_per_s=LOOPBACK.bandwidth_bytes_per_s,
                down_bytes_per_s=LOOPBACK.bandwidth_bytes_per_s,
                memory_bytes=MEMORY_BYTES * size,
            )
            for host, island, size in zip(hosts, island_names, sizes, strict=True)
        },
        islands={island: Island(name=island, number=n) for n, island in enumerate(island_names)},
        links=Links(
            island=dict(zip(hosts, island_names, strict=True)),
            within_host=LOOPBACK,
            between=LOOPBACK if islands > 1 else None,
        ),
    )


def _worker(name: str, host: str) -> Device:
    return Device(
        name=name,
        host=host,
        kind="cpu",
        flops=FLOPS,
        memory_bytes=MEMORY_BYTES,
        memory_bandwidth_bytes_per_s=MEMORY_BANDWIDTH,
    )
