"""Where somebody listens, as a person writes it."""

from __future__ import annotations

import ipaddress
from contextlib import suppress
from dataclasses import dataclass

from shoal.errors import UserError

PORT = 29600


@dataclass(frozen=True, slots=True)
class Endpoint:
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_endpoint(text: str, *, key: str, port: int = PORT) -> Endpoint:
    """``"oslo"``, ``"10.0.0.1:29600"``, ``"[fd77::1]:29600"``, ``"::1"``; `port` where none is written.

    Raises:
        UserError: no address can be read from it.
    """
    host, said = text.strip(), ""
    if host.startswith("["):
        host, bracket, rest = host[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise UserError("brackets that do not fit", key=key, value=text, mend="write [::1]:29600")
        said = rest[1:]
    elif host.count(":") == 1:
        host, _, said = host.partition(":")
    elif ":" in host:
        with suppress(ValueError):
            ipaddress.IPv6Address(host.partition("%")[0])
            return Endpoint(host, port)
        raise UserError("not an address", key=key, value=text, mend="write an IPv6 address with a port as [::1]:29600")
    if not host:
        raise UserError("the host is missing", key=key, value=text, mend="write HOST:PORT")
    if said and not (said.isdigit() and 0 < int(said) < 65536):
        raise UserError("not a port", key=key, value=text, mend="write a number from 1 to 65535 after the colon")
    return Endpoint(host, int(said) if said else port)


def parse_listening(text: str, *, key: str) -> Endpoint:
    """``"29600"``, ``":29600"`` and ``"*:29600"`` at every address of this machine; otherwise as `parse_endpoint`.

    Raises:
        UserError: no port can be read from it.
    """
    host, _, said = text.strip().rpartition(":")
    if host in ("", "*") and said.isdigit():
        if not 0 < int(said) < 65536:
            raise UserError("not a port", key=key, value=text, mend="write a number from 1 to 65535")
        return Endpoint("", int(said))
    return parse_endpoint(text, key=key)
