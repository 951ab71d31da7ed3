"""The first exchange on a new socket: the caller says who it is and for whom, the answerer accepts or says why not.

Nothing of a caller is believed, and at most `HELLO_BYTES` are read, before it has shown that it belongs to this run.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import struct
from dataclasses import asdict
from typing import Any

from shoal.transport._protocol import Hello
from shoal.world import Peer

HELLO_BYTES = 4096
_PREFIX = struct.Struct("!4sI")
_MAGIC = b"SHLH"


class NoGreeting(OSError):
    """The other side is no peer of Shoal."""


def reason(error: OSError) -> str:
    """Why a connection could not be made, in the system's own words."""
    if isinstance(error, NoGreeting):
        return str(error)
    if isinstance(error, TimeoutError):
        return "no answer"
    return os.strerror(error.errno) if error.errno else str(error)


async def call(sock: socket.socket, hello: Hello, *, to: Peer) -> str | None:
    """Introduce myself to peer `to`; returns why I was refused, None if I was accepted.

    Raises:
        OSError: the connection failed, or whoever answers is not `to`.
    """
    await asyncio.get_running_loop().sock_sendall(sock, _packed({**asdict(hello), "to": to}))
    answer = await _hear(sock)
    if answer.get("peer") != to:
        raise NoGreeting(f"who answers there is {str(answer.get('peer'))[:80]!r}")
    why = answer.get("refused")
    return None if why is None else str(why)


async def hear(sock: socket.socket) -> tuple[Hello, Peer]:
    """What a caller says: its hello, and whom it means.

    Raises:
        OSError: the connection failed, or the caller does not speak this language.
    """
    said = await _hear(sock)
    fields = {name: said.get(name) for name in ("run", "peer", "digest", "to")}
    if not all(isinstance(value, str) for value in fields.values()) or type(said.get("version")) is not int:
        raise NoGreeting("its greeting lacks a name, run, digest or version")
    to = str(fields.pop("to"))
    return Hello(version=said["version"], **{name: str(value) for name, value in fields.items()}), to


def answer(sock: socket.socket, me: Peer, refused: str | None) -> None:
    """Tell a caller. Does not wait: the buffer of a socket that has sent nothing yet takes it whole."""
    sock.send(_packed({"peer": me, "refused": refused}))


def _packed(fields: dict[str, Any]) -> bytes:
    text = json.dumps(fields).encode()
    return _PREFIX.pack(_MAGIC, len(text)) + text


async def _hear(sock: socket.socket) -> dict[str, Any]:
    magic, length = _PREFIX.unpack(await _exactly(sock, _PREFIX.size))
    if magic != _MAGIC or length > HELLO_BYTES:
        raise NoGreeting("whoever speaks there is no peer of Shoal")
    try:
        fields = json.loads(await _exactly(sock, length))
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        raise NoGreeting("whoever speaks there is no peer of Shoal")
    return fields


async def _exactly(sock: socket.socket, length: int) -> bytes:
    """Byte for byte what was asked for: what follows belongs to the connection."""
    parts = bytearray()
    while len(parts) < length:
        part = await asyncio.get_running_loop().sock_recv(sock, length - len(parts))
        if not part:
            raise NoGreeting("the connection closed")
        parts += part
    return bytes(parts)
