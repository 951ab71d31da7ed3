"""The cluster, resolved: every default filled in, every name checked. Seconds, bytes, FLOP/s."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from shoal import schema
from shoal.errors import UserError


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One worker's device. `name` is the peer's name everywhere; expanded names are zero-padded (``gpu-07``)."""

    name: str
    host: str
    kind: str  # a torch device type: "cpu", "cuda", ...
    flops: float
    memory_bytes: float
    memory_bandwidth_bytes_per_s: float

    def seconds(self, flops: float, touched_bytes: float) -> float:
        """What a computation takes here: as long as its FLOPs or its bytes, whichever takes longer (the roofline model,
        Williams, Waterman and Patterson 2009)."""
        return max(flops / self.flops, touched_bytes / self.memory_bandwidth_bytes_per_s)


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
    """The way from one host to another, in this direction. `latency_s` is one way and a mean, `jitter_s` its standard
    deviation from packet to packet, `loss` the share of packets that get lost.

    `pipe` names the bottleneck that this bandwidth belongs to: links with the same `pipe` share it.
    """

    latency_s: float
    bandwidth_bytes_per_s: float
    pipe: str
    price_per_byte: float = 0.0
    jitter_s: float = 0.0
    loss: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What the cluster file says about a way, in one direction; it may hold for many pairs of hosts.

    `shared`: all these pairs share one pipe. Otherwise each pair has its own.
    """

    latency_s: float
    bandwidth_bytes_per_s: float
    shared: bool = False
    price_per_byte: float = 0.0
    jitter_s: float = 0.0
    loss: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Links(Mapping[tuple[str, str], Link]):
    """The link of every pair of hosts, made when asked for: a thousand hosts have a million pairs.

    The most specific rule wins: from host to host, then between a host and an island, then inside the island or from
    island to island, then the default between islands.

    Args:
        island: host → its island. No host has the name of an island.
        within_host: for two devices of one host.
        within_island: island → rule for two of its hosts.
        between: for two islands that have no rule of their own.
        rules: (from, to) → rule; each is the name of a host or of an island.
    """

    island: Mapping[str, str]
    within_host: Rule
    within_island: Mapping[str, Rule] = field(default_factory=dict)
    between: Rule | None = None
    rules: Mapping[tuple[str, str], Rule] = field(default_factory=dict)

    def find(self, src: str, dst: str) -> tuple[Rule, tuple[str, str]] | None:
        """The rule for the way from host `src` to host `dst`, and the two places that it is about; None if none is."""
        if src == dst:
            return self.within_host, (src, dst)
        here, there = self.island[src], self.island[dst]
        for places in ((src, dst), (src, there), (here, dst)):
            if places in self.rules:
                return self.rules[places], places
        places = (here, there)
        rule = self.within_island.get(here) if here == there else self.rules.get(places, self.between)
        return None if rule is None else (rule, places)

    def __getitem__(self, pair: tuple[str, str]) -> Link:
        found = self.find(*pair)
        if found is None:
            raise KeyError(pair)
        rule, places = found
        src, dst = places if rule.shared else pair
        return Link(
            latency_s=rule.latency_s,
            bandwidth_bytes_per_s=rule.bandwidth_bytes_per_s,
            pipe=f"{src}>{dst}",
            price_per_byte=rule.price_per_byte,
            jitter_s=rule.jitter_s,
            loss=rule.loss,
        )

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return ((src, dst) for src in self.island for dst in self.island if self.find(src, dst))

    def __len__(self) -> int:
        return sum(1 for _ in self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Devices, hosts, islands and links. `links` is keyed by (host, host), inside a host included.

    `devices` is sorted by name.
    """

    name: str
    devices: tuple[Device, ...]
    hosts: Mapping[str, Host]
    islands: Mapping[str, Island]
    links: Mapping[tuple[str, str], Link] = field(repr=False)
    _by_name: Mapping[str, Device] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        by_name = {device.name: device for device in sorted(self.devices, key=lambda device: device.name)}
        if len(by_name) != len(self.devices):
            raise ValueError("two devices of a cluster have the same name")
        object.__setattr__(self, "devices", tuple(by_name.values()))
        object.__setattr__(self, "_by_name", by_name)

    @property
    def peers(self) -> tuple[str, ...]:
        """Names of all devices, sorted."""
        return tuple(self._by_name)

    def device(self, peer: str) -> Device:
        """The device called `peer`.

        Raises:
            UserError: there is none.
        """
        if peer not in self._by_name:
            raise UserError("no such device", value=peer, mend=schema.nearest(peer, self.peers))
        return self._by_name[peer]

    def host_of(self, peer: str) -> Host:
        """The host that device `peer` is on."""
        return self.hosts[self.device(peer).host]

    def link(self, src: str, dst: str) -> Link:
        """The way from device `src` to device `dst`.

        Raises:
            ValueError: they are the same device.
        """
        if src == dst:
            raise ValueError(f"device {src!r} has no link to itself")
        return self.links[self.device(src).host, self.device(dst).host]

    def island_of(self, peer: str) -> int:
        """The number of the island that device `peer` is on."""
        return self.islands[self.host_of(peer).island].number
