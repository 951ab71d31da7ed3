"""Small clusters for tests, built without a file."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

from shoal.cluster import Cluster, Device, Host, Island, Link


def flat(
    n: int,
    *,
    latency: float = 0.0,
    bandwidth: float = 1e6,
    flops: float = 1e9,
    memory_bandwidth: float = 1e9,
    up: float = math.inf,
    down: float = math.inf,
    link: Callable[[int, int], tuple[float, float]] | None = None,
    speed: Mapping[int, float] | None = None,
    hosts: Sequence[int] | None = None,
) -> Cluster:
    """n devices, each on a host of its own unless `hosts` says on which, and a pipe for every pair of hosts.

    Args:
        link: (host, host) → (latency, bandwidth), instead of the same for all.
        speed: device → factor on `flops`.
    """
    hosts = list(range(n)) if hosts is None else hosts
    names = [f"h{h:04d}" for h in sorted(set(hosts))]
    devices = tuple(
        Device(
            name=f"p{i:04d}",
            host=f"h{hosts[i]:04d}",
            kind="cpu",
            flops=flops * (speed or {}).get(i, 1.0),
            memory_bytes=1e9,
            memory_bandwidth_bytes_per_s=memory_bandwidth,
        )
        for i in range(n)
    )

    def way(a: str, b: str) -> Link:
        lat, bw = link(int(a[1:]), int(b[1:])) if link else (latency, bandwidth)
        return Link(latency_s=lat, bandwidth_bytes_per_s=bw, pipe=f"{a}>{b}")

    return Cluster(
        name="test",
        devices=devices,
        hosts={h: Host(name=h, island="i", up_bytes_per_s=up, down_bytes_per_s=down, memory_bytes=1e9) for h in names},
        islands={"i": Island(name="i", number=0)},
        links=_Links(names, way),
    )


class _Links(Mapping[tuple[str, str], Link]):
    """Made when asked for: a thousand hosts have a million links."""

    def __init__(self, names: Sequence[str], way: Callable[[str, str], Link]) -> None:
        self._names, self._way = names, way

    def __getitem__(self, pair: tuple[str, str]) -> Link:
        return self._way(*pair)

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return ((a, b) for a in self._names for b in self._names)

    def __len__(self) -> int:
        return len(self._names) ** 2
