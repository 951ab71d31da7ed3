"""Which peer is on which host, and how both are called, from what the peers say of themselves."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shoal.errors import UserError
from shoal.probe.figures import About, Pair
from shoal.world import Peer


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """All peers in their places. `hosts` has each host's peers, in order; the first one measures its links."""

    hosts: Mapping[str, Sequence[Peer]]
    host: Mapping[Peer, str]
    device: Mapping[Peer, str]
    kind: Mapping[Peer, str]
    memory_bytes: Mapping[Peer, float]
    host_memory_bytes: Mapping[str, float]
    physical: Mapping[str, str]

    @property
    def inside(self) -> list[Pair]:
        """(host, host) for hosts with at least two devices."""
        return [(host, host) for host, peers in self.hosts.items() if len(peers) > 1]

    def ends(self, pair: Pair) -> tuple[Peer, Peer]:
        """The peers that measure a pair."""
        a, b = pair
        return self.hosts[a][0], self.hosts[b][a == b]

    def sharing_processors(self) -> list[list[Peer]]:
        """Peers by physical machine."""
        found: dict[str, list[Peer]] = {}
        for host, peers in self.hosts.items():
            found.setdefault(self.physical[host], []).extend(peers)
        return list(found.values())


def arrange(abouts: Mapping[Peer, About], names: Mapping[Peer, tuple[str, str]]) -> Places:
    """Group the peers by machine and name the hosts.

    Args:
        names: peer → (device, host) as a person calls them; the others keep the peer's name and their machine's.

    Raises:
        UserError: a name that a person gave to one host belongs to two machines.
    """
    host = _names(abouts, names)
    hosts: dict[str, list[Peer]] = {}
    for peer in sorted(abouts):
        hosts.setdefault(host[peer], []).append(peer)
    of = {name: abouts[peers[0]] for name, peers in hosts.items()}
    memory = {}
    for name, peers in hosts.items():
        sharing = [peer for peer in peers if abouts[peer].memory_bytes is None]
        for peer in peers:
            memory[peer] = abouts[peer].memory_bytes or of[name].host_memory_bytes / max(1, len(sharing))
    return Places(
        hosts=hosts,
        host=host,
        device={peer: names[peer][0] if peer in names else peer for peer in abouts},
        kind={peer: about.kind for peer, about in abouts.items()},
        memory_bytes=memory,
        host_memory_bytes={name: about.host_memory_bytes for name, about in of.items()},
        physical={name: about.physical for name, about in of.items()},
    )


def _names(abouts: Mapping[Peer, About], names: Mapping[Peer, tuple[str, str]]) -> dict[Peer, str]:
    """Peer → its host's name. Two machines that call themselves alike get different ones, unless a person insists."""
    found: dict[Peer, str] = {}
    machine_of: dict[str, str] = {}  # host → its machine
    host_of: dict[str, str] = {}  # machine → the name that it has got
    for peer in sorted(abouts):
        about = abouts[peer]
        if peer in names:
            host = names[peer][1]
            if machine_of.setdefault(host, about.machine) != about.machine:
                raise _two_machines(host, found, peer)
        elif about.machine in host_of:
            host = host_of[about.machine]
        else:
            host = wanted = _fit(about.host)
            if about.named and host in machine_of:
                raise _two_machines(host, found, peer)
            number = 2
            while host in machine_of:
                host, number = f"{wanted}-{number}", number + 1
            machine_of[host], host_of[about.machine] = about.machine, host
        found[peer] = host
    return found


def _two_machines(host: str, found: Mapping[Peer, str], peer: Peer) -> UserError:
    first = next(other for other, name in found.items() if name == host)
    return UserError(
        f"{first!r} and {peer!r} run on two machines, and both are to be on host {host!r}",
        key="host",
        value=host,
        mend="give every machine a host of its own, and start the processes in the order of the devices' names",
    )


def _fit(name: str) -> str:
    """`name` with only what a cluster file allows in names."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", name.partition(".")[0]).lstrip("._-") or "host"
