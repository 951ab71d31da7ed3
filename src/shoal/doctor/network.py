"""What is seen of the network: interfaces, routes, names. Nothing is sent."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from shoal.doctor.endpoint import Endpoint
from shoal.errors import UserError
from shoal.worlds import process_addresses

FAR = ("198.18.0.1", "2001:db8::1")
"""Addresses that nobody has (RFC 2544 and 3849): the route to them is the route to everywhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """What was seen of the network.

    Args:
        interfaces: name → its addresses.
        routes: the address of the route to everywhere, or to the coordinator, by family; at most one each.
        name, resolved: the host's own name, and the addresses that it resolves to.
        setting: of ``SHOAL_INTERFACE``.
        offered: the address that others would be told: by the setting, or else by the route; None if there is none.
        refused: why the setting cannot be used.
        coordinator: where the workers meet, as a person wrote it; None if that is not known.
        met: the addresses that `coordinator` resolves to.
        ipv6: whether the system has it at all.
    """

    interfaces: Mapping[str, Sequence[str]]
    routes: Sequence[str]
    name: str
    resolved: Sequence[str]
    setting: str | None = None
    offered: str | None = None
    refused: UserError | None = None
    coordinator: str | None = None
    met: Sequence[str] = ()
    ipv6: bool = True

    @classmethod
    def here(cls, coordinator: str | None = None, setting: str | None = None) -> Network:
        name, met = socket.gethostname(), _resolve(coordinator) if coordinator else []
        routes = [found for target in (met if coordinator else FAR) if (found := _route(target))]
        offered, refused = None, None
        try:
            offered = process_addresses.offered_host(next(iter(routes), ""), setting) or None
        except UserError as error:
            refused = error
        return cls(
            interfaces=process_addresses.interfaces(),
            routes=routes,
            setting=setting,
            offered=offered,
            refused=refused,
            name=name,
            resolved=_resolve(name),
            coordinator=coordinator,
            met=met,
            ipv6=_has_ipv6(),
        )

    def interface(self, address: str) -> str | None:
        """The one that has `address`."""
        return next((name for name, addresses in self.interfaces.items() if address in addresses), None)

    def reachable(self, port: int) -> list[Endpoint]:
        """Where others would call this machine at `port`, the likeliest first: what is offered, the routes to
        everywhere, any other address, the host's name."""
        known = [address for addresses in self.interfaces.values() for address in addresses]
        usable = [address for address in known if not process_addresses.is_loopback(address)]
        hosts = [host for host in dict.fromkeys((self.offered, *self.routes, *usable)) if host]
        return [Endpoint(host, port) for host in hosts or [self.name]]


def _route(target: str) -> str | None:
    """This machine's address on the way to the address `target`; None if there is no way."""
    with suppress(OSError), socket.socket(process_addresses.family(target), socket.SOCK_DGRAM) as probe:
        probe.connect((target, 9))
        return probe.getsockname()[0]
    return None


def _resolve(name: str) -> list[str]:
    """Its addresses in the order in which they will be tried."""
    with suppress(OSError, UnicodeError):
        found = socket.getaddrinfo(name, 9, type=socket.SOCK_STREAM)
        return list(dict.fromkeys(str(entry[4][0]) for entry in found))
    return []


def _has_ipv6() -> bool:
    """Whether some interface speaks it: loopback does unless it is switched off."""
    with suppress(OSError), socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as probe:
        probe.bind(("::1", 0))
        return True
    with suppress(OSError):
        return bool(Path("/proc/net/if_inet6").read_text(encoding="ascii").strip())
    return False
