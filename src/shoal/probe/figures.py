"""What a survey is asked for, and what it finds, as plain data that survives JSON.

Every measured number is a `Figure` or stands beside its spread: a number without its uncertainty cannot be compared
with the next measurement of the same thing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

Pair = tuple[str, str]

PRECISIONS = ("float32", "bfloat16")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How long and how exactly to measure.

    Args:
        seconds: for the bandwidth of one direction, counted from the first arrival; 25 round trips if those are longer.
        nbytes: for the bandwidth of one direction.
        tolerance: a rate is settled when its 95 % interval is within this share of it.
        window: seconds over which a rate must be settled; 10 round trips if those are longer.
        pings, ping_seconds: round trips of one pair of hosts: so many, or so long (and then 8 at least).
        repeats: runs of each computation of which the median counts.
        patience: seconds that a peer waits for its next order.
    """

    seconds: float = 4.0
    nbytes: float = 1e9
    tolerance: float = 0.02
    window: float = 0.5
    pings: int = 20
    ping_seconds: float = 1.0
    repeats: int = 7
    patience: float = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """Who a peer is.

    Args:
        host: the host's name.
        machine: the same for two peers if and only if they are on one host and share its links.
        physical: the same for two peers if their hosts share processors (containers, network namespaces).
        named: the host's name was given by a person; otherwise it may be changed to be unique.
        memory_bytes: of the device; None for a share of the host's.
    """

    host: str
    machine: str
    physical: str
    kind: str = "cpu"
    named: bool = False
    memory_bytes: float | None = None
    host_memory_bytes: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A measured number. `spread` is the half-width of its interval, as a share of it; 0 if all runs were equal."""

    value: float
    spread: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFacts:
    """A device. `flops` is by precision (``"float32"``), in FLOP/s of a large matrix product."""

    host: str
    kind: str
    memory_bytes: float
    memory_bandwidth: Figure
    flops: Mapping[str, Figure]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFacts:
    """A host. Its clock is `clock_offset_s` ahead of the leader's, give or take `clock_error_s`; None if unknown."""

    memory_bytes: float
    clock_offset_s: float | None = None
    clock_error_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """From one host to another, or between two devices of one.

    Args:
        latency_s: half of the median round trip, in which the ways there and back cannot be told apart.
        least_latency_s: half of the least.
        jitter_s: standard deviation of one way, from the quartiles of the round trips, if both ways vary alike.
        bandwidth: of payload, in bytes/s.
        settled: whether the rate had become constant before the bound on time or bytes was reached.
        nbytes, seconds: what the bandwidth was measured with.
    """

    latency_s: float
    least_latency_s: float
    jitter_s: float
    pings: int
    bandwidth: Figure
    settled: bool
    nbytes: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """All that was measured. `ways` has every ordered pair of different hosts, and (host, host) where two devices
    of one host were measured; `leader` is the host whose clock is the reference."""

    leader: str
    devices: Mapping[str, DeviceFacts]
    hosts: Mapping[str, HostFacts]
    ways: Mapping[Pair, Way] = field(default_factory=dict)
    seconds: float = 0.0
    nbytes: int = 0

    def to_json(self) -> dict[str, Any]:
        """As plain data; pairs become lists of two."""
        raw = asdict(self)
        raw["ways"] = [{"from": src, "to": dst, **asdict(way)} for (src, dst), way in self.ways.items()]
        return raw

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Survey:
        """What `to_json` was given."""
        return cls(
            leader=raw["leader"],
            devices={name: _device(device) for name, device in raw["devices"].items()},
            hosts={name: HostFacts(**host) for name, host in raw["hosts"].items()},
            ways={(way["from"], way["to"]): _way(way) for way in raw["ways"]},
            seconds=raw["seconds"],
            nbytes=raw["nbytes"],
        )


def _device(raw: Mapping[str, Any]) -> DeviceFacts:
    flops = {precision: Figure(**figure) for precision, figure in raw["flops"].items()}
    return DeviceFacts(**{**raw, "memory_bandwidth": Figure(**raw["memory_bandwidth"]), "flops": flops})


def _way(raw: Mapping[str, Any]) -> Way:
    fields = {name: value for name, value in raw.items() if name not in ("from", "to")}
    return Way(**{**fields, "bandwidth": Figure(**raw["bandwidth"])})
