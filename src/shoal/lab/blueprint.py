"""From a cluster to what the switch needs to know: addresses, packets' lengths, queues and buffers, as plain JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shoal.cluster import Cluster
from shoal.errors import UserError
from shoal.lab.namespaces import DEVICE

MOST_HOSTS = 250
"""One process moves all packets, and every host has a device and a descriptor in it."""
PACKET_SECONDS = 0.002
"""What a packet may take on its link, where that allows at least `SHORTEST` bytes: long packets cost the switch less,
short ones keep a message from waiting for another's packet."""
SHORTEST, LONGEST = 1500, 65_000
MEETING_PORT = 29500
"""Where the workers of a lab meet, at the first one's host: all ports there are free."""
LEAST_BUFFER = 4 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How the lab's routers and hosts behave, beyond what a cluster file says.

    Args:
        queue_s: seconds' worth of packets that wait before an uplink, a link and a downlink; what exceeds it is
            dropped.
        congestion: TCP's congestion control; None is this system's default.
        seed: of losses and jitter.
    """

    queue_s: float = 0.2
    congestion: str | None = None
    seed: int = 0


def addresses(cluster: Cluster) -> dict[str, tuple[str, str]]:
    """Host → its IPv4 and its IPv6 address."""
    hosts = list(cluster.hosts)
    if len(hosts) > MOST_HOSTS:
        mend = "rehearse it in virtual time (shoal simulate)"
        raise UserError(f"a lab has at most {MOST_HOSTS} hosts", value=len(hosts), mend=mend)
    return {host: (f"10.77.0.{n}", f"fd77::{n:x}") for n, host in enumerate(hosts, start=1)}


def packet_bytes(bytes_per_s: float) -> int:
    """The longest IP packet on a link of this rate."""
    return round(min(max(bytes_per_s * PACKET_SECONDS, SHORTEST), LONGEST))


def blueprint(cluster: Cluster, settings: Settings) -> dict[str, Any]:
    """What `shoal.lab.switch` reads. Hosts are numbered in the cluster's order; rates are IP bytes/s.

    Raises:
        UserError: there are too many hosts.
    """
    at = addresses(cluster)
    number = {host: n for n, host in enumerate(cluster.hosts)}
    pairs = [(src, dst) for src in cluster.hosts for dst in cluster.hosts if src != dst]
    links = {pair: cluster.links[pair] for pair in pairs}
    return {
        "cluster": cluster.name,
        "hosts": [
            {
                "name": host.name,
                "addresses": at[host.name],
                "up": host.up_bytes_per_s,
                "down": host.down_bytes_per_s,
                "commands": _commands(cluster, host.name, at),
                "sysctls": _sysctls(cluster, host.name, settings),
            }
            for host in cluster.hosts.values()
        ],
        "ways": [
            {
                "from": number[src],
                "to": number[dst],
                "pipe": link.pipe,
                "latency_s": link.latency_s,
                "jitter_s": link.jitter_s,
                "loss": link.loss,
            }
            for (src, dst), link in links.items()
        ],
        "pipes": {link.pipe: link.bandwidth_bytes_per_s for link in links.values()},
        "queue_s": settings.queue_s,
        "seed": settings.seed,
    }


def rate(cluster: Cluster, src: str, dst: str) -> float:
    """The most that goes from host `src` to host `dst`, in IP bytes/s."""
    ends = cluster.hosts[src].up_bytes_per_s, cluster.hosts[dst].down_bytes_per_s
    return min(*ends, cluster.links[src, dst].bandwidth_bytes_per_s)


def route(address: str, mtu: int) -> str:
    """The command of ``ip -batch`` that limits packets to `address`."""
    return f"route replace {address} dev {DEVICE} mtu {mtu}"


def _commands(cluster: Cluster, host: str, at: Mapping[str, tuple[str, str]]) -> list[str]:
    """Interface, addresses, and a route to every other host with the length of packets that its rate asks for."""
    v4, v6 = at[host]
    commands = [
        "link set lo up",
        f"link set {DEVICE} mtu {LONGEST} txqueuelen 1000 up",
        f"addr add {v4}/24 dev {DEVICE}",
        f"addr add {v6}/64 dev {DEVICE} nodad",
    ]
    for other, both in at.items():
        if other != host:
            # Both ends keep to the slower direction: a TCP connection has one segment size.
            mtu = packet_bytes(min(rate(cluster, host, other), rate(cluster, other, host)))
            commands += [route(address, mtu) for address in both]
    return commands


def _sysctls(cluster: Cluster, host: str, settings: Settings) -> list[tuple[str, str]]:
    """TCP buffers that fill the longest and fastest way, its queue included; the default ends at 4 MB."""
    need = 0.0
    for other in cluster.hosts:
        if other != host:
            there, back = cluster.links[host, other], cluster.links[other, host]
            fastest = max(rate(cluster, host, other), rate(cluster, other, host))
            need = max(need, fastest * (there.latency_s + back.latency_s + settings.queue_s))
    most = max(LEAST_BUFFER, 4 * round(need))  # half of a buffer is bookkeeping
    return [
        ("ipv4/tcp_rmem", f"4096 131072 {most}"),
        ("ipv4/tcp_wmem", f"4096 65536 {most}"),
        ("ipv4/tcp_no_metrics_save", "1"),  # what one connection found out does not colour the next
        *([("ipv4/tcp_congestion_control", settings.congestion)] if settings.congestion else []),
    ]
