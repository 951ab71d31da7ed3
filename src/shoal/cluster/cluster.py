"""The cluster, resolved: every default filled in, every name checked. Seconds, bytes, FLOP/s."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One worker's device. `name` is the peer's name everywhere; expanded names are zero-padded (``gpu-07``)."""

    name: str
    host: str
    kind: str  # a torch device type: "cpu", "cuda", ...
    flops: float
    memory_bytes: float
    memory_bandwidth_bytes_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """A machine: its devices share its up- and downlink."""

    name: str
    island: str
    up_bytes_per_s: float
    down_bytes_per_s: float
    memory_bytes: float
    price_per_hour: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Island:
    """A group of hosts on a fast network. `number` is its place in the file."""

    name: str
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """The way from one host to another, in this direction. `latency_s` is one way.

    `pipe` names the bottleneck that this bandwidth belongs to: links with the same `pipe` share it.
    """

    latency_s: float
    bandwidth_bytes_per_s: float
    pipe: str
    price_per_byte: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Devices, hosts, islands and links. `links` is keyed by (host, host), inside a host included."""

    name: str
    devices: tuple[Device, ...]
    hosts: Mapping[str, Host]
    islands: Mapping[str, Island]
    links: Mapping[tuple[str, str], Link] = field(repr=False)

    @property
    def peers(self) -> tuple[str, ...]:
        """Names of all devices, sorted."""
        ...

    def device(self, peer: str) -> Device: ...

    def link(self, src: str, dst: str) -> Link:
        """The way from device `src` to device `dst`."""
        ...

    def island_of(self, peer: str) -> int: ...
