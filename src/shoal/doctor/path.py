"""The path to another machine, tested both ways: `shoal doctor --listen` there, `shoal doctor --peer` here."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import statistics
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime

from shoal import __version__
from shoal.doctor.endpoint import Endpoint
from shoal.doctor.finding import Finding, fail, note, ok, warn
from shoal.doctor.listener import new_nonce
from shoal.doctor.talk import BIG, LINE_LIMIT, PIECE, PROTOCOL, Trouble, drink, hear, pour, say
from shoal.units import show_bandwidth, show_seconds

PINGS = 10
MOST_BYTES = 1 << 28
CLOCKS_APART = 1.0
_LISTEN = "is shoal doctor --listen running there, and does its firewall let this port in?"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Args:
    connect: seconds until the other must have answered a call.
    answer: seconds for any single answer.
    flood: seconds of each measurement of bandwidth.
    """

    connect: float = 5.0
    answer: float = 5.0
    flood: float = 1.0


async def check_path(to: Endpoint, limits: Limits | None = None) -> AsyncIterator[Finding]:
    """Test the path to `to` and back. Ends after a bounded time, whatever the other does."""
    limits = limits or Limits()
    try:
        reader, writer = await _connect(to, limits)
    except Trouble as trouble:
        yield fail("path", f"{to} {trouble}", _LISTEN)
        return
    me = str(writer.get_extra_info("sockname")[0])
    try:
        async for finding in _test(to, me, reader, writer, limits):
            yield finding
    except Trouble as trouble:
        yield fail("path", f"{to} {trouble}", "look at what shoal doctor --listen says there, and at firewalls between")
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def _connect(to: Endpoint, limits: Limits) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    try:
        async with asyncio.timeout(limits.connect):
            return await asyncio.open_connection(to.host, to.port, limit=LINE_LIMIT + PIECE)
    except TimeoutError:
        raise Trouble(f"did not answer within {limits.connect:g} s") from None
    except socket.gaierror as error:
        raise Trouble(f"has no address: {error.strerror}") from None
    except OSError as error:
        said = {errno.ECONNREFUSED: "refused the connection: nobody listens there"}.get(error.errno or 0)
        raise Trouble(said or f"cannot be reached: {error.strerror or error}") from None


async def _test(
    to: Endpoint, me: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, limits: Limits
) -> AsyncIterator[Finding]:
    nonce = new_nonce()
    await say(writer, limits.answer, protocol=PROTOCOL, version=__version__, nonce=nonce)
    hello = await hear(reader, limits.answer)
    if hello.get("protocol") != PROTOCOL or hello.get("nonce") != nonce:
        raise Trouble("speaks another protocol")
    if hello.get("version") != __version__:
        yield warn(
            "version", f"{__version__} here, {hello.get('version')} there", "install the same one on all machines"
        )
    trips, offset = await _ping(reader, writer, limits)
    spread = f"{show_seconds(min(trips))} at least, {show_seconds(statistics.median(trips))} in the middle"
    yield ok("path", f"{to} answers: round trip {spread}")
    if hello.get("you") != me:
        yield note("path", f"it sees this machine as {hello.get('you')}, not {me}: there is a NAT between")
    yield _clock(offset, min(trips))
    yield await _back(me, reader, writer, limits)
    try:
        await _send(reader, writer, limits, seconds=limits.answer, most=BIG)
    except Trouble as trouble:
        yield fail("packets", f"small messages pass, {BIG >> 10} KiB do not: it {trouble}",
                   "a tunnel cuts packets short: lower the interface's MTU (ip link set DEV mtu 1280)")  # fmt: skip
        return
    there = await _send(reader, writer, limits, seconds=limits.flood, most=MOST_BYTES)
    await say(writer, limits.answer, do="give", seconds=limits.flood, most=MOST_BYTES)
    nbytes, seconds = await drink(reader, limits.answer)
    back = nbytes / seconds
    yield ok("bandwidth", f"{show_bandwidth(round(there))} there, {show_bandwidth(round(back))} back, of payload")
    await say(writer, limits.answer, do="bye")
    await hear(reader, limits.answer)


async def _ping(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, limits: Limits
) -> tuple[list[float], float]:
    """Round trips, and by how much the other's clock is ahead, from the shortest (as NTP does)."""
    loop, trips, best = asyncio.get_running_loop(), list[float](), (float("inf"), 0.0)
    for _ in range(PINGS):
        began, clock = loop.time(), datetime.now(UTC).timestamp()
        await say(writer, limits.answer, do="ping")
        now = (await hear(reader, limits.answer)).get("now")
        trip = loop.time() - began
        if not isinstance(now, int | float):
            raise Trouble("speaks another protocol")
        trips.append(trip)
        best = min(best, (trip, now - clock - trip / 2))
    return trips, best[1]


def _clock(offset: float, trip: float) -> Finding:
    text = f"the other is {abs(offset):.3f} s {'ahead' if offset > 0 else 'behind'} (± {trip / 2:.3f} s)"
    if abs(offset) > CLOCKS_APART + trip:
        return warn("clocks", text, "synchronise both (timedatectl set-ntp true)")
    return ok("clocks", text)


async def _back(me: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, limits: Limits) -> Finding:
    """Let the other dial this machine (field case A4: reachable one way only)."""
    nonce, heard = new_nonce(), asyncio.Event()

    async def take(back: asyncio.StreamReader, answer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.LimitOverrunError, TimeoutError):
            async with asyncio.timeout(limits.answer):
                if (await back.readline()).strip() == nonce.encode():
                    heard.set()
        answer.close()

    async with await asyncio.start_server(take, me, 0, limit=LINE_LIMIT) as server:
        port = server.sockets[0].getsockname()[1]
        await say(writer, limits.answer, do="dial", host=me, port=port, nonce=nonce)
        told = str((await hear(reader, limits.answer + limits.connect)).get("dialled"))
        if told == "ok":
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(limits.answer):
                    await heard.wait()
    if heard.is_set():
        return ok("way back", f"it reaches this machine at {me}, too")
    return warn(
        "way back",
        f"it does not reach this machine at {me}: {told}",
        "workers must reach one another both ways: open SHOAL_PORT_RANGE in the firewall, or use a VPN",
    )


async def _send(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, limits: Limits, *, seconds: float, most: int
) -> float:
    """Bytes/s at which the other took what was sent."""
    await say(writer, limits.answer, do="take")
    await pour(writer, seconds, most, limits.answer)
    told = await hear(reader, limits.answer + seconds)
    try:
        return float(told["nbytes"]) / float(told["seconds"])
    except (KeyError, TypeError, ValueError, ZeroDivisionError):
        raise Trouble("speaks another protocol") from None
