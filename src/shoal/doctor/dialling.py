"""Calling a machine, with a reason of its own for each address that does not answer."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import threading
from collections.abc import Callable, Sequence
from typing import Any

from shoal.doctor.endpoint import Endpoint
from shoal.doctor.talk import LINE_LIMIT, PIECE, Trouble, tune

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Resolve = Callable[[str, int], Sequence[tuple[Any, ...]]]
"""Of a host and a port, what `socket.getaddrinfo` says."""

_SILENT = "a firewall drops it, the machine is off, or the address is another one's: let the port in there"
_SAYS: dict[int, tuple[str, str]] = {
    errno.ECONNREFUSED: (
        "refused the connection: nobody listens there",
        "start shoal doctor --listen there, or check the port; some firewalls refuse in this way, too",
    ),
    errno.EHOSTUNREACH: (
        "is unreachable: a router on the way, or the own network, does not find it",
        "is it switched on, in this network or VPN, and is the address right?",
    ),
    errno.ENETUNREACH: (
        "is unreachable: this machine has no route to it",
        "join its network or VPN, or use its other address (IPv4 and IPv6 do not reach each other)",
    ),
    errno.EACCES: ("may not be called from here", "a firewall of this machine forbids it: let this port out"),
    errno.EPERM: ("may not be called from here", "a firewall of this machine forbids it: let this port out"),
}


async def dial(to: Endpoint, within: float, *, resolve: Resolve | None = None) -> Connection:
    """Connect to the first address of `to` that answers, each within `within` seconds.

    Raises:
        Trouble: none does; says of each why not.
    """
    addresses = await _look_up(to, within, resolve or _resolve)
    troubles: dict[str, Trouble] = {}
    for address in addresses:
        try:
            return await _call(address, to.port, within)
        except Trouble as trouble:
            troubles[address] = trouble
    first = next(iter(troubles.values()))
    if len({str(trouble) for trouble in troubles.values()}) == 1:
        raise first
    raise Trouble("; ".join(f"{address} {trouble}" for address, trouble in troubles.items()), first.mend)


async def _call(address: str, port: int, within: float) -> Connection:
    try:
        async with asyncio.timeout(within):
            reader, writer = await asyncio.open_connection(address, port, limit=LINE_LIMIT + PIECE)
    except TimeoutError:
        raise Trouble(f"did not answer within {within:g} s", _SILENT) from None
    except OSError as error:
        raise _trouble(error) from None
    tune(writer)
    return reader, writer


def _trouble(error: OSError) -> Trouble:
    number = error.errno or 0
    if number in _SAYS:
        return Trouble(*_SAYS[number])
    return Trouble(f"cannot be called: {os.strerror(number) if number else error}", "check the address")


async def _look_up(to: Endpoint, within: float, resolve: Resolve) -> list[str]:
    """The addresses of a name. A resolver may take minutes: it is left behind in a thread that keeps nobody waiting."""
    loop = asyncio.get_running_loop()
    found: asyncio.Future[list[str]] = loop.create_future()

    def settle(addresses: list[str], error: OSError | None) -> None:
        if not found.done():
            found.set_exception(error) if error else found.set_result(addresses)

    def look() -> None:
        addresses: list[str] = []
        error: OSError | None = None
        try:
            addresses = list(dict.fromkeys(str(entry[4][0]) for entry in resolve(to.host, to.port)))
        except (OSError, UnicodeError) as problem:
            error = problem if isinstance(problem, OSError) else socket.gaierror(0, "no name")
        with contextlib.suppress(RuntimeError):  # nobody waits any more
            loop.call_soon_threadsafe(settle, addresses, error)

    threading.Thread(target=look, name="resolver", daemon=True).start()
    mend = "check the spelling, write the address instead of the name, or add it to /etc/hosts"
    try:
        async with asyncio.timeout(within):
            return await found
    except TimeoutError:
        raise Trouble(f"has no address: the resolver said nothing for {within:g} s", mend) from None
    except OSError as error:
        raise Trouble(f"has no address: {error.strerror or error}", mend) from None


def _resolve(host: str, port: int) -> Sequence[tuple[Any, ...]]:
    return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
