"""What the two ends of a path test say to each other: lines of JSON, and counted bytes. Nothing is believed unread."""

from __future__ import annotations

import asyncio
import json
from typing import Any

PROTOCOL = "shoal-doctor/1"
LINE_LIMIT = 4096
PIECE = 1 << 16
BIG = 1 << 18
"""A message that does not fit into any packet: it finds paths that carry small ones only."""


class Trouble(Exception):
    """The other end cannot be talked to; the text says in which way."""


async def say(writer: asyncio.StreamWriter, within: float, **told: Any) -> None:
    """One line.

    Raises:
        Trouble: it does not get away in time.
    """
    writer.write(json.dumps(told).encode() + b"\n")
    await _timely(writer.drain(), within)


async def hear(reader: asyncio.StreamReader, within: float) -> dict[str, Any]:
    """The next line.

    Raises:
        Trouble: it is late, or not of this protocol.
    """
    try:
        line = await _timely(reader.readuntil(b"\n"), within)
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        raise Trouble("closed the connection, or speaks another protocol") from None
    try:
        told = json.loads(line)
    except ValueError:
        told = None
    if not isinstance(told, dict):
        raise Trouble(f"speaks another protocol: it said {line[:40]!r}")
    return told


async def pour(writer: asyncio.StreamWriter, seconds: float, most: int, within: float) -> int:
    """Send pieces for `seconds`, `most` bytes at most, then an empty one; returns the bytes."""
    loop = asyncio.get_running_loop()
    until, sent, piece = loop.time() + seconds, 0, bytes(PIECE)
    while loop.time() < until and sent < most:
        writer.write(PIECE.to_bytes(4, "big") + piece)
        await _timely(writer.drain(), within)
        sent += PIECE
    writer.write(bytes(4))
    await _timely(writer.drain(), within)
    return sent


async def drink(reader: asyncio.StreamReader, within: float) -> tuple[int, float]:
    """Take pieces until the empty one; returns the bytes after the first one and the seconds that they took."""
    loop = asyncio.get_running_loop()
    total, start, end = 0, None, loop.time()
    while True:
        size = int.from_bytes(await _timely(_exactly(reader, 4), within), "big")
        if size == 0:
            return total, max(end - (end if start is None else start), 1e-9)
        if size > PIECE:
            raise Trouble("sends pieces that are too large")
        await _timely(_exactly(reader, size), within)
        end = loop.time()
        if start is None:
            start = end
        else:
            total += size


async def _exactly(reader: asyncio.StreamReader, size: int) -> bytes:
    try:
        return await reader.readexactly(size)
    except asyncio.IncompleteReadError:
        raise Trouble("closed the connection in the middle of a message") from None


async def _timely(doing: Any, within: float) -> Any:
    try:
        async with asyncio.timeout(within):
            return await doing
    except TimeoutError:
        raise Trouble(f"said nothing for {within:g} s") from None
    except OSError as error:
        raise Trouble(f"broke the connection: {error.strerror or error}") from None
