"""What the two ends of a path test say to each other: lines of JSON, and counted bytes. Nothing is believed unread."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import socket
import sys
from collections.abc import Awaitable
from typing import Any, TypeVar

PROTOCOL = "shoal-doctor/1"
LINE_LIMIT = 4096
PIECE = 1 << 14
STEADY = 6 * PIECE
"""Bytes from which on they make a rate without the wait for the first."""
_UNSENT = 1 << 14

T = TypeVar("T")


class Trouble(Exception):
    """The other end cannot be talked to; the text says in which way.

    Args:
        mend: what to do about it, where that is known.
    """

    def __init__(self, text: str, mend: str = "") -> None:
        super().__init__(text)
        self.mend = mend


def tune(writer: asyncio.StreamWriter) -> None:
    """Keep what waits here unsent small, so that a slow path is measured in seconds and not in full buffers."""
    writer.transport.set_write_buffer_limits(high=_UNSENT)
    sock = writer.get_extra_info("socket")
    if sock is not None and hasattr(socket, "TCP_NOTSENT_LOWAT"):
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT)


async def say(writer: asyncio.StreamWriter, within: float, /, **told: Any) -> None:
    """One line.

    Raises:
        Trouble: it does not get away in time.
    """
    writer.write(json.dumps(told).encode() + b"\n")
    await _timely(writer.drain(), within)


async def hear(reader: asyncio.StreamReader, within: float) -> dict[str, Any]:
    """The next line.

    Raises:
        Trouble: it is late, too long, or not of this protocol.
    """
    try:
        line = await _timely(reader.readuntil(b"\n"), within)
    except asyncio.IncompleteReadError as cut:
        raise Trouble(f"speaks another protocol: {_quoted(cut.partial)}" if cut.partial else "hung up") from None
    except asyncio.LimitOverrunError:
        raise Trouble("speaks another protocol: its line does not end") from None
    try:
        told = json.loads(line) if len(line) <= LINE_LIMIT else None
    except (ValueError, RecursionError):
        told = None
    if not isinstance(told, dict):
        raise Trouble(f"speaks another protocol: {_quoted(line)}")
    return told


def number(told: dict[str, Any], key: str, *, most: float = sys.float_info.max) -> float:
    """A number from 0 to `most` that the other has told.

    Raises:
        Trouble: it is none.
    """
    value = told.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= most:
        raise Trouble(f"speaks another protocol: its {key} is {str(value)[:40]!r}")
    return float(value)


def words(told: dict[str, Any], key: str) -> str:
    """A short text that the other has told, fit to be printed."""
    text = str(told.get(key))[:100]
    return text if text.isprintable() else repr(text)


async def pour(writer: asyncio.StreamWriter, seconds: float, most: float, within: float) -> None:
    """Send pieces for `seconds`, or until they are `most` bytes, then an empty one."""
    loop = asyncio.get_running_loop()
    until, left, piece = loop.time() + seconds, int(most), bytes(PIECE)
    while loop.time() < until and left > 0:
        size = min(PIECE, left)
        writer.write(size.to_bytes(4, "big") + piece[:size])
        await _timely(writer.drain(), within)
        left -= size
    writer.write(bytes(4))
    await _timely(writer.drain(), within)


async def drink(reader: asyncio.StreamReader, within: float, longest: float) -> tuple[int, float]:
    """Take pieces until the empty one. Returns the bytes after the first piece and the seconds that they took, because
    the first one has waited for the path to fill; of a few pieces, which may come in one burst, all and the wait.

    Args:
        within: seconds for each piece.
        longest: seconds for all.

    Raises:
        Trouble: they do not come, or do not end, in time.
    """
    loop = asyncio.get_running_loop()
    first, total, began, start = 0, 0, loop.time(), None
    while size := int.from_bytes(await _timely(_exactly(reader, 4), within), "big"):
        if size > PIECE:
            raise Trouble("sends pieces that are too large")
        await _timely(_exactly(reader, size), within)
        if start is None:
            first, start = size, loop.time()
        else:
            total += size
        if loop.time() - began > longest:
            raise Trouble(f"does not stop sending for {longest:g} s")
    end = loop.time()
    if start is None or total < STEADY:
        return first + total, max(end - began, 1e-9)
    return total, max(end - start, 1e-9)


def new_nonce() -> str:
    return secrets.token_hex(8)


async def _exactly(reader: asyncio.StreamReader, size: int) -> bytes:
    try:
        return await reader.readexactly(size)
    except asyncio.IncompleteReadError:
        raise Trouble("hung up in the middle of a message") from None


async def _timely(doing: Awaitable[T], within: float) -> T:
    try:
        async with asyncio.timeout(within):
            return await doing
    except TimeoutError:
        raise Trouble(f"said nothing for {within:g} s") from None
    except OSError as error:
        raise Trouble(f"broke the connection: {error.strerror or error}") from None


def _quoted(said: bytes) -> str:
    return f"it said {said[:40]!r}"
