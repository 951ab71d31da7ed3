"""The other end of a path test: answers one tester at a time, until told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from shoal import __version__
from shoal.doctor.endpoint import Endpoint
from shoal.doctor.talk import LINE_LIMIT, PIECE, PROTOCOL, Trouble, drink, hear, pour, say
from shoal.errors import UserError

IDLE = 10.0
"""Seconds after which a tester that says nothing is left."""
DIAL = 3.0
MOST_SECONDS, MOST_BYTES = 10.0, 1 << 30


async def serve(
    at: Endpoint, *, lasting: float | None = None, on_ready: Callable[[Endpoint], None], on_event: Callable[[str], None]
) -> None:
    """Listen at `at` and answer testers.

    Args:
        lasting: seconds; None until cancelled.
        on_ready: told the address with the port that was taken.
        on_event: told who came and what went wrong.

    Raises:
        UserError: it cannot listen there.
    """
    busy = asyncio.Lock()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = str((writer.get_extra_info("peername") or ("somebody",))[0])
        try:
            async with busy:
                on_event(f"{peer} came")
                await _answer(reader, writer, peer)
                on_event(f"{peer} is done")
        except Trouble as trouble:
            on_event(f"{peer} {trouble}")
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    try:
        server = await asyncio.start_server(answer, at.host or None, at.port, limit=LINE_LIMIT + PIECE)
    except OSError as error:
        raise UserError(f"cannot listen at {at}: {error.strerror}", mend="name another address or port") from None
    async with server:
        on_ready(Endpoint(at.host, server.sockets[0].getsockname()[1]))
        await asyncio.sleep(float("inf") if lasting is None else lasting) if lasting else await asyncio.Event().wait()


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, peer: str) -> None:
    hello = await hear(reader, IDLE)
    if hello.get("protocol") != PROTOCOL:
        raise Trouble("speaks another protocol")
    await say(writer, IDLE, protocol=PROTOCOL, version=__version__, nonce=hello.get("nonce"), you=peer)
    while (asked := await hear(reader, IDLE)).get("do") != "bye":
        await _obey(asked, reader, writer, peer)
    await say(writer, IDLE, ok=True)


async def _obey(asked: dict[str, Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter, peer: str) -> None:
    match asked.get("do"):
        case "ping":
            await say(writer, IDLE, now=datetime.now(UTC).timestamp())
        case "take":
            nbytes, seconds = await drink(reader, IDLE)
            await say(writer, IDLE, nbytes=nbytes, seconds=seconds)
        case "give":
            seconds = min(float(asked.get("seconds", 1.0)), MOST_SECONDS)
            await pour(writer, seconds, min(int(asked.get("most", MOST_BYTES)), MOST_BYTES), IDLE)
        case "dial":
            await say(writer, IDLE, dialled=await _dial(str(asked.get("host")), asked.get("port"), str(asked["nonce"])))
        case _:
            raise Trouble("asks for something that does not exist")


async def _dial(host: str, port: Any, nonce: str) -> str:
    """Connect back to the tester; ``"ok"``, or what happened."""
    if not isinstance(port, int) or not 0 < port < 65536:
        return "no such port"
    try:
        async with asyncio.timeout(DIAL):
            _, writer = await asyncio.open_connection(host, port)
            writer.write(nonce[:64].encode() + b"\n")
            await writer.drain()
            writer.close()
            await writer.wait_closed()
    except TimeoutError:
        return f"no answer within {DIAL:g} s"
    except OSError as error:
        return error.strerror or str(error)
    return "ok"


def new_nonce() -> str:
    return secrets.token_hex(8)
