"""Which address the others would be told, and the traps that it may be."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

from shoal.doctor.finding import Finding, fail, note, ok, warn
from shoal.doctor.network import Network
from shoal.worlds.process_addresses import is_loopback

CARRIER_NAT = ipaddress.ip_network("100.64.0.0/10")
DOCKER = ipaddress.ip_network("172.17.0.0/16")
CONTAINERS = ("docker", "br-", "veth", "cni", "flannel", "cali", "virbr", "vmnet", "podman", "lxc", "lxd")
TUNNELS = {"tailscale": "Tailscale", "wg": "WireGuard", "zt": "ZeroTier", "nebula": "Nebula", "tun": "", "utun": ""}
_SET = "set SHOAL_INTERFACE to the interface that leads to the others"


def check_addresses(network: Network) -> Iterator[Finding]:
    """Judge the address that the others would be told."""
    listed = "; ".join(f"{name} {', '.join(addresses) or '-'}" for name, addresses in network.interfaces.items())
    yield ok("interfaces", listed)
    yield _offered(network)
    yield from _families(network)
    yield from _own_name(network)


def _offered(network: Network) -> Finding:
    """The one that would be told (field cases A1, A2 and A4)."""
    where = network.coordinator
    if where is not None and not network.met:
        mend = "check the spelling, write the address instead of the name, or add it to /etc/hosts"
        return fail("address", f"{where}, where the workers meet, has no address", mend)
    if network.refused is not None:
        return fail("address", f"SHOAL_INTERFACE={network.setting}: {network.refused.problem}", network.refused.mend)
    toward = f"the way to {where}" if where else "the way to other machines"
    if network.offered is None:
        made = fail if where else warn
        return made("address", f"{toward} does not exist: no route", f"connect it, or {_SET}")
    text = f"others are told {network.offered} ({network.interface(network.offered) or 'no interface'}, by "
    return _judge(network, network.offered, f"{text}{'SHOAL_INTERFACE' if network.setting else toward})")


def _judge(network: Network, address: str, text: str) -> Finding:
    """`text` says which address, and why this one."""
    at, name = ipaddress.ip_address(address.partition("%")[0]), network.interface(address) or ""
    if at.is_loopback:
        return _loopback(network, text)
    if at.is_link_local:
        return warn("address", f"{text}: only the same cable can reach that", _SET)
    if name.startswith(CONTAINERS) or at in DOCKER:
        return warn(
            "address",
            f"{text}: a container's bridge, other machines cannot reach it",
            f"{_SET}; inside a container, use the host's network (--network host)",
        )
    tunnel = next((kind or "a tunnel" for prefix, kind in TUNNELS.items() if name.startswith(prefix)), None)
    if tunnel:
        mend = "all peers must be in the same tunnel; its relay may be slow and its MTU small: test with --peer"
        return note("address", f"{text}: {tunnel}", mend)
    if at in CARRIER_NAT:
        mend = "only peers of the same network can call it: join all to one VPN, and test with --peer"
        return warn("address", f"{text}: behind a provider's NAT", mend)
    if at.is_private:
        return ok("address", f"{text}; a private address, for peers of the same network")
    return ok("address", text)


def _loopback(network: Network, text: str) -> Finding:
    """Fine where a person has asked for it; a trap where a name has led there."""
    where = (network.coordinator or "").partition(".")[0]
    if where == "localhost" or (network.coordinator or "") in network.met:
        return note("address", f"{text}: all workers must be on this machine", _SET)
    mend = "write the coordinator's address instead of its name, or mend /etc/hosts; or " + _SET
    return warn("address", f"{text}: only this machine can reach that", mend if network.coordinator else _SET)


def _families(network: Network) -> Iterator[Finding]:
    """Peers of one family do not reach those of the other (case A5)."""
    known = [address for addresses in network.interfaces.values() for address in addresses if not is_loopback(address)]
    families = {":" in address for address in known}
    if len(families) == 1:
        only, other = ("IPv6", "IPv4") if True in families else ("IPv4", "IPv6")
        off = "; IPv6 is switched off (sysctl net.ipv6.conf.all.disable_ipv6)" if not network.ipv6 else ""
        yield note("families", f"this machine has {only} only: peers that have {other} only cannot reach it{off}")
    elif families:
        yield ok("families", "IPv4 and IPv6")


def _own_name(network: Network) -> Iterator[Finding]:
    """Shoal does not use what a host's own name resolves to; other programs do (case A1)."""
    mend = "Shoal goes by the route; for other programs set GLOO_SOCKET_IFNAME, or mend /etc/hosts"
    if not network.resolved:
        yield note("host name", f"{network.name} does not resolve", mend)
    elif all(is_loopback(address) for address in network.resolved):
        text = f"{network.name} resolves to {network.resolved[0]}, which only this machine reaches"
        yield note("host name", text, mend)
    else:
        yield ok("host name", f"{network.name} is {', '.join(network.resolved)}")
