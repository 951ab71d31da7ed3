"""Other ends of a path test over real loopback sockets: ours, and such as misbehave."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

from shoal.doctor import Endpoint, Finding, Limits, check_path, serve

QUICK = Limits(connect=5.0, answer=5.0, flood=0.05)
HURRIED = Limits(connect=5.0, answer=0.3, flood=0.05)

Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def findings(to: Endpoint, limits: Limits = QUICK, **options: Any) -> dict[str, Finding]:
    found = [finding async for finding in check_path(to, limits, **options)]
    assert all(finding.mend for finding in found if finding.state in ("warn", "fail")), found
    assert all("\n" not in finding.line() for finding in found)
    return {finding.check: finding for finding in found}


@asynccontextmanager
async def listener(host: str = "127.0.0.1", events: list[str] | None = None, **options: Any) -> AsyncIterator[Endpoint]:
    """Our own other end."""
    ready: asyncio.Future[Endpoint] = asyncio.get_running_loop().create_future()
    tell = (events if events is not None else []).append
    server = asyncio.create_task(serve(Endpoint(host, 0), on_ready=ready.set_result, on_event=tell, **options))
    await asyncio.wait({server, ready}, return_when=asyncio.FIRST_COMPLETED)
    if server.done():
        server.result()
    try:
        yield ready.result()
    finally:
        server.cancel()
        with suppress(asyncio.CancelledError):
            await server


@asynccontextmanager
async def answering(answer: Answer) -> AsyncIterator[Endpoint]:
    """Somebody who answers every connection in this way."""
    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield Endpoint("127.0.0.1", server.sockets[0].getsockname()[1])


async def silence(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Accept, and say nothing until the other hangs up."""
    with suppress(asyncio.CancelledError, ConnectionError):
        while await reader.read(1 << 16):
            pass
    writer.close()


def talking(words: bytes) -> Answer:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(words)
        with suppress(ConnectionError):
            await writer.drain()
        writer.close()

    return talk


def relay(to: Endpoint, *, there: int | None = None, back: int | None = None) -> Answer:
    """A path whose packets must be small: it carries what comes in pieces up to so many bytes, and after the first
    larger one of a direction nothing of that direction any more, as a tunnel does whose MTU nobody has been told."""

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, most: int | None) -> None:
        with suppress(ConnectionError):
            while piece := await reader.read(1 << 16):
                if most is not None and len(piece) > most:
                    await silence(reader, writer)
                    return
                writer.write(piece)
                await writer.drain()
            writer.close()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(to.host, to.port)
        await asyncio.gather(carry(reader, far_writer, there), carry(far_reader, writer, back))
        writer.close()
        far_writer.close()

    return answer
