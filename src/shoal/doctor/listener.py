"""The other end of a path test: answers one tester at a time, until told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

from shoal import __version__
from shoal.doctor.endpoint import Endpoint
from shoal.doctor.talk import LINE_LIMIT, PIECE, PROTOCOL, Trouble, drink, hear, number, pour, say, tune, words
from shoal.doctor.way_back import call_back
from shoal.errors import UserError

IDLE = 10.0
"""Seconds after which a tester that says nothing is left."""
DIAL = 3.0
SESSION = 120.0
"""Seconds after which a tester must be done: nobody keeps the others out for ever."""
MOST_SECONDS, MOST_BYTES = 10.0, float(1 << 28)

CallBack = Callable[[str, float, str, float], Awaitable[str]]


async def serve(
    at: Endpoint,
    *,
    lasting: float | None = None,
    on_ready: Callable[[Endpoint], None],
    on_event: Callable[[str], None],
    dial_back: CallBack = call_back,
) -> None:
    """Listen at `at` and answer testers.

    Args:
        lasting: seconds; None until cancelled.
        on_ready: told the address with the port that was taken.
        on_event: told who came and what went wrong.
        dial_back: how a tester's own address is called.

    Raises:
        UserError: it cannot listen there.
    """
    listener = _Listener(on_event, dial_back)
    try:
        server = await asyncio.start_server(listener.answer, at.host or None, at.port, limit=LINE_LIMIT + PIECE)
    except OSError as error:
        mend = "name an address of this machine and a free port"
        why = os.strerror(error.errno) if error.errno else str(error)
        raise UserError(f"cannot listen at {at}: {why}", mend=mend) from None
    async with server:
        try:
            on_ready(Endpoint(at.host, server.sockets[0].getsockname()[1]))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(lasting):
                    await asyncio.Event().wait()
        finally:
            for task in listener.tasks:
                task.cancel()


class _Listener:
    """Whoever greets first is answered; others are told that it is busy, and those who never greet hold up nobody."""

    def __init__(self, on_event: Callable[[str], None], dial_back: CallBack) -> None:
        self.tasks: set[asyncio.Task[Any]] = set()
        self._on_event, self._dial_back, self._busy = on_event, dial_back, False

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = str((writer.get_extra_info("peername") or ("somebody",))[0])
        task = asyncio.current_task()
        assert task is not None
        self.tasks.add(task)
        tune(writer)
        try:
            hello = await hear(reader, IDLE)
            if hello.get("protocol") != PROTOCOL:
                raise Trouble("speaks another protocol")
            if self._busy:
                await say(writer, IDLE, protocol=PROTOCOL, busy=True)
                raise Trouble("must come again: one machine is tested at a time")
            await self._take(hello, reader, writer, peer)
        except Trouble as trouble:
            self._on_event(f"{peer} {trouble}")
        except TimeoutError:
            self._on_event(f"{peer} was not done within {SESSION:g} s")
        except asyncio.CancelledError:
            pass  # the listener ends; whoever cancelled it waits for nothing else
        finally:
            self.tasks.discard(task)
            writer.close()

    async def _take(
        self, hello: dict[str, Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter, peer: str
    ) -> None:
        self._busy = True
        try:
            async with asyncio.timeout(SESSION):
                self._on_event(f"{peer} came")
                nonce = words(hello, "nonce")
                await say(writer, IDLE, protocol=PROTOCOL, version=__version__, nonce=nonce, you=peer)
                while (asked := await hear(reader, IDLE)).get("do") != "bye":
                    await self._obey(asked, reader, writer)
                await say(writer, IDLE, ok=True)
                self._on_event(f"{peer} is done")
        finally:
            self._busy = False

    async def _obey(self, asked: dict[str, Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        match asked.get("do"):
            case "ping":
                await say(writer, IDLE, now=datetime.now(UTC).timestamp())
            case "take":
                nbytes, seconds = await drink(reader, IDLE, SESSION)
                await say(writer, IDLE, nbytes=nbytes, seconds=seconds)
            case "give":
                seconds, most = number(asked, "seconds"), number(asked, "most")
                await pour(writer, min(seconds, MOST_SECONDS), min(most, MOST_BYTES), IDLE)
            case "dial":
                host, port, within = words(asked, "host"), number(asked, "port"), number(asked, "within")
                told = await self._dial_back(host, port, words(asked, "nonce"), min(within, DIAL))
                await say(writer, IDLE, dialled=told)
            case _:
                raise Trouble("asks for something that does not exist")
