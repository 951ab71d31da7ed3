"""Whether the other can call this machine: it dials back, and the one who is called says who it is first.

So whoever asks a listener to dial learns of no more than that an address can be reached, and nothing of what is asked
for is sent to a stranger.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from shoal.doctor.dialling import dial
from shoal.doctor.endpoint import Endpoint
from shoal.doctor.talk import LINE_LIMIT, PROTOCOL, Trouble, hear, new_nonce, say
from shoal.worlds import process_addresses

LEAST_PORT = 1024
"""Nobody is made to call a system's own services."""


class Door:
    """A port of this machine that waits for one caller who knows the nonce."""

    def __init__(self, at: Endpoint, nonce: str) -> None:
        self.at, self.nonce, self.came = at, nonce, asyncio.Event()

    async def opened(self, within: float) -> bool:
        """Whether somebody who knows the nonce has come, after waiting for so long at most."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within):
                await self.came.wait()
        return self.came.is_set()


@asynccontextmanager
async def open_door(host: str, ports: range | None, within: float) -> AsyncIterator[Door]:
    """Listen at `host`, on a port of `ports` or on any free one.

    Raises:
        UserError: it cannot listen there.
    """
    sock = process_addresses.listen(host, ports, needed=1)
    door = Door(Endpoint(host, sock.getsockname()[1]), new_nonce())

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await say(writer, within, protocol=PROTOCOL, door=door.nonce)
            if (await hear(reader, within)).get("here") == door.nonce:
                door.came.set()
        except Trouble:
            pass  # a stranger
        finally:
            writer.close()

    async with await asyncio.start_server(take, sock=sock, limit=LINE_LIMIT):
        yield door


async def call_back(host: str, port: float, nonce: str, within: float) -> str:
    """Dial a tester's door; ``"ok"``, or what happened."""
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return "that is no address"
    if not LEAST_PORT <= port < 65536:
        return f"ports under {LEAST_PORT} are not called"
    try:
        reader, writer = await dial(Endpoint(host, int(port)), within)
        try:
            if (await hear(reader, within)).get("door") != nonce:
                return "another machine has that address, too"
            await say(writer, within, here=nonce)
        finally:
            writer.close()
    except Trouble as trouble:
        return str(trouble)
    return "ok"
