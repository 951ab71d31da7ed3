"""Which address the others would be told, and what in the environment overrules it."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from shoal.doctor.finding import Finding, fail, note, ok, warn
from shoal.errors import UserError
from shoal.launch.torchrun import place
from shoal.worlds import process_addresses as known
from shoal.worlds.rendezvous import from_environment

FAR = ("192.0.2.1", "2001:db8::1")
"""Addresses that nobody has (RFC 5737 and 3849): the route to them is the route to everywhere. Nothing is sent."""
CARRIER_NAT = ipaddress.ip_network("100.64.0.0/10")
DOCKER = ipaddress.ip_network("172.17.0.0/16")
VIRTUAL = ("docker", "br-", "veth", "cni", "flannel", "virbr", "vmnet", "podman", "lxc")
TUNNEL = ("tailscale", "wg", "zt", "tun", "utun")


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """What was seen of the network.

    Args:
        interfaces: name → its addresses.
        routes: the address of the route to everywhere, or to the coordinator, by family; at most one each.
        name, resolved: the host's own name, and the addresses that it resolves to.
        listening: ports of this machine that somebody listens on, of those that were asked about.
    """

    interfaces: Mapping[str, Sequence[str]]
    routes: Sequence[str]
    name: str
    resolved: Sequence[str]

    @classmethod
    def here(cls, coordinator: str | None = None) -> Network:
        name = socket.gethostname()
        routes = [found for far in ((coordinator,) if coordinator else FAR) if (found := _route(far))]
        return cls(interfaces=known.interfaces(), routes=routes, name=name, resolved=_resolve(name))


def check_addresses(
    network: Network, setting: str | None = None, *, coordinator: str | None = None
) -> Iterator[Finding]:
    """Judge the address that the others would be told.

    Args:
        setting: of ``SHOAL_INTERFACE``.
        coordinator: the address at which the workers meet, if it is known.
    """
    listed = "; ".join(f"{name} {', '.join(addresses) or '-'}" for name, addresses in network.interfaces.items())
    yield ok("interfaces", listed)
    toward = f"the way to {coordinator}" if coordinator else "the way to other machines"
    if not network.routes:
        mend = "connect it, or set SHOAL_INTERFACE to the interface that leads to them"
        yield warn("address", f"no route: {toward} does not exist", mend)
        return
    try:
        offered = known.offered_host(network.routes[0], setting)
    except UserError as error:
        yield fail("address", f"SHOAL_INTERFACE={setting}: {error.problem}", error.mend)
        return
    by = "SHOAL_INTERFACE" if setting else toward
    yield _judge(offered, _interface(network, offered), by)
    families = {known.family(address) for addresses in network.interfaces.values() for address in addresses
                if not known.is_loopback(address)}  # fmt: skip
    if len(families) == 1:
        only, other = ("IPv4", "IPv6") if socket.AF_INET in families else ("IPv6", "IPv4")
        yield note("address", f"this machine has {only} only: peers that have {other} only cannot reach it")
    yield from _own_name(network)


def check_environment(environment: Mapping[str, str]) -> Iterator[Finding]:
    """Judge the variables that say where workers meet, and on which ports they may listen."""
    found = {key: environment.get(key, "") for key in ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE")}
    there = [key for key, value in found.items() if value]
    if there and len(there) < len(found):
        missing = ", ".join(key for key in found if key not in there)
        yield fail(
            "launcher", f"{', '.join(there)} set, but not {missing}", "start workers with torchrun, or unset them"
        )
    elif there:
        try:
            here, meeting = place(environment), from_environment(environment)
            assert here is not None
            yield ok("launcher", f"rank {here.rank} of {here.size}, meeting at {meeting}")
        except UserError as error:
            yield fail("launcher", str(error), "start workers with torchrun, or unset them")
    yield from _ports(environment)


def _judge(address: str, interface: str | None, by: str) -> Finding:
    """The address that is offered, and the traps that it may be (field cases A1, A4)."""
    text = f"others are told {address} ({interface or 'no interface'}, by {by})"
    at = ipaddress.ip_address(address.partition("%")[0])
    mend = "set SHOAL_INTERFACE to the interface that leads to the others"
    if at.is_loopback:
        return warn("address", f"{text}: only this machine can reach that", mend)
    if at.is_link_local:
        return warn("address", f"{text}: only the same cable can reach that", mend)
    name = interface or ""
    if name.startswith(VIRTUAL) or at in DOCKER:
        return warn("address", f"{text}: inside a container, other machines cannot reach it",
                    "use the host's network (--network host), or a port range that the host passes on")  # fmt: skip
    if name.startswith(TUNNEL) or at in CARRIER_NAT:
        return note("address", f"{text}: a tunnel, or an address behind a provider's NAT",
                    "all peers must be in the same tunnel; its relay may be slow: test with --peer")  # fmt: skip
    if at.is_private:
        return ok("address", f"{text}; a private address, for peers of the same network")
    return ok("address", text)


def _own_name(network: Network) -> Iterator[Finding]:
    """Shoal does not use what a host's own name resolves to; other programs do (case A1)."""
    mend = "Shoal goes by the route; for other programs set GLOO_SOCKET_IFNAME, or mend /etc/hosts"
    if not network.resolved:
        yield note("host name", f"{network.name} does not resolve", mend)
    elif all(known.is_loopback(address) for address in network.resolved):
        yield note(
            "host name", f"{network.name} resolves to {network.resolved[0]}, which only this machine reaches", mend
        )
    else:
        yield ok("host name", f"{network.name} is {', '.join(network.resolved)}")


def _ports(environment: Mapping[str, str]) -> Iterator[Finding]:
    text = environment.get(known.PORT_RANGE)
    try:
        allowed = known.port_range(text)
    except UserError as error:
        yield fail("ports", str(error), 'write SHOAL_PORT_RANGE="40000-40050"')
        return
    if allowed is not None:
        taken = [port for port in allowed if _is_taken(port)]
        free = len(allowed) - len(taken)
        said = f"{free} of {len(allowed)} ports of {text} are free; each worker on this machine needs one"
        if free:
            yield ok("ports", said)
        else:
            yield fail("ports", f"{said}: {taken[0]} is held by {known.port_owner(taken[0])}", "allow more ports")
    port = environment.get("MASTER_PORT", "")
    if port.isdigit() and environment.get("RANK") == "0" and _is_taken(int(port)):
        who = known.port_owner(int(port))
        yield warn(
            "ports",
            f"MASTER_PORT {port} is taken, by {who}",
            "fine if that is this run's launcher; else choose another",
        )


def _is_taken(port: int) -> bool:
    for family, host in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):
        with suppress(OSError), socket.socket(family, socket.SOCK_STREAM) as sock:
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                sock.bind((host, port))
            except OSError:
                return True
    return False


def _interface(network: Network, address: str) -> str | None:
    return next((name for name, addresses in network.interfaces.items() if address in addresses), None)


def _route(target: str) -> str | None:
    """This machine's address on the way to `target`; None if there is no way. Sends nothing."""
    with suppress(OSError):
        family, kind, protocol, _, where = socket.getaddrinfo(target, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(where)
            return probe.getsockname()[0]
    return None


def _resolve(name: str) -> list[str]:
    with suppress(OSError):
        return sorted({str(found[4][0]) for found in socket.getaddrinfo(name, None)})
    return []
