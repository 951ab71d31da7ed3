"""This machine's addresses and ports: what it may offer to others, and where it may listen."""

from __future__ import annotations

import array
import errno
import ipaddress
import os
import socket
import struct
import sys
from contextlib import suppress
from pathlib import Path

from shoal.errors import UserError

INTERFACE = "SHOAL_INTERFACE"
PORT_RANGE = "SHOAL_PORT_RANGE"
_SIOCGIFADDR = 0x8915  # Linux: the IPv4 address of an interface


def offered_host(route: str, setting: str | None) -> str:
    """The address to offer to the others.

    Args:
        route: the address of the route to the store, used if nothing is set.
        setting: an interface's name or an address of this machine; the route's family is preferred.

    Raises:
        UserError: there is no such interface or address here; lists those that exist.
    """
    if not setting:
        return route
    known = interfaces()
    if known.get(setting):
        return sorted(known[setting], key=lambda address: family(address) != family(route))[0]
    with suppress(ValueError, OSError):
        address = str(ipaddress.ip_address(setting.strip("[]")))
        with socket.socket(family(address), socket.SOCK_DGRAM) as probe:
            probe.bind((address, 0))
        return address
    have = "; ".join(f"{name} ({', '.join(known[name]) or 'no address'})" for name in sorted(known))
    raise UserError(
        "this machine has no such interface or address",
        key=INTERFACE,
        value=setting,
        mend=f"write one name or address (no list, no exclusion) of: {have}",
    )


def interfaces() -> dict[str, list[str]]:
    """Interface → its addresses, IPv4 first, without link-local ones. Addresses are known on Linux only."""
    known: dict[str, list[str]] = {name: [] for _, name in socket.if_nameindex()}
    if sys.platform != "linux":
        return known
    import fcntl  # does not exist on every platform

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for name in known:
            request = array.array("B", struct.pack("256s", name.encode()[:15]))
            with suppress(OSError):  # it has no IPv4 address
                fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
                known[name].append(socket.inet_ntoa(request.tobytes()[20:24]))
    with suppress(OSError):
        for line in Path("/proc/net/if_inet6").read_text(encoding="ascii").splitlines():
            digits, *_, name = line.split()
            address = ipaddress.IPv6Address(bytes.fromhex(digits))
            if not address.is_link_local and name in known:
                known[name].append(str(address))
    return known


def family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def spoken(host: str, port: int) -> str:
    """``host:port``, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def machine_name() -> str:
    """Equal for two processes if and only if they reach each other over loopback: same boot, same network namespace."""
    parts = [socket.gethostname()]
    with suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip())
        parts.append(os.readlink("/proc/self/ns/net"))
    return " ".join(parts)


def port_range(text: str | None) -> range | None:
    """``"40000-40050"``, both ends included; None where nothing is set.

    Raises:
        UserError: it is written differently.
    """
    if not text:
        return None
    low, dash, high = text.partition("-")
    if not (dash and low.strip().isdigit() and high.strip().isdigit() and 0 < int(low) <= int(high) < 65536):
        raise UserError(
            "not a range of ports", key=PORT_RANGE, value=text, mend='write the first and the last one: "40000-40050"'
        )
    return range(int(low), int(high) + 1)


def listen(host: str, ports: range | None, *, needed: int) -> socket.socket:
    """A nonblocking socket that listens at `host`, on the first free port of `ports` or on any.

    Args:
        needed: how many ports the peers on this machine need together, for the error's text.

    Raises:
        UserError: the range has too few ports, or none of it is free, or `host` cannot be listened on.
    """
    wider = f"{needed} ports are needed on this machine, one for each of its peers"
    if ports is not None and len(ports) < needed:
        raise UserError(
            f"{len(ports)} ports are too few", key=PORT_RANGE, value=_said(ports), mend=f"{wider}; allow more"
        )
    for port in ports or (0,):
        sock = socket.socket(family(host), socket.SOCK_STREAM)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((host, port))
            sock.listen(128)
            sock.setblocking(False)
        except OSError as error:
            sock.close()
            if error.errno == errno.EADDRINUSE:
                continue
            raise UserError(
                f"cannot listen at {spoken(host, port)}: {error.strerror}", mend=f"set {INTERFACE}"
            ) from None
        return sock
    raise UserError("every port of it is taken", key=PORT_RANGE, value=_said(ports), mend=f"{wider}; allow more")


def port_owner(port: int) -> str:
    """Who listens on `port` of this machine, as far as this process may see: ``"process 123 (python)"``."""
    inodes: set[str] = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with suppress(OSError):
            for line in Path(table).read_text(encoding="ascii").splitlines()[1:]:
                fields = line.split()
                if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:  # 0A: listening
                    inodes.add(f"socket:[{fields[9]}]")
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if any(os.readlink(link) in inodes for link in (process / "fd").iterdir()):
                return f"process {process.name} ({(process / 'comm').read_text(encoding='utf-8').strip()})"
    return "another process"


def _said(ports: range | None) -> str | None:
    return f"{ports.start}-{ports.stop - 1}" if ports else None
