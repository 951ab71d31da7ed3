"""The path to another machine, tested both ways: `shoal doctor --listen` there, `shoal doctor --peer` here."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime

from shoal import __version__
from shoal.doctor.dialling import Connection, Resolve, dial
from shoal.doctor.endpoint import Endpoint
from shoal.doctor.finding import Finding, fail, note, ok, warn
from shoal.doctor.talk import PROTOCOL, Trouble, drink, hear, new_nonce, number, pour, say, words
from shoal.doctor.way_back import open_door
from shoal.errors import UserError
from shoal.units import show_bandwidth, show_bytes, show_seconds
from shoal.worlds import process_addresses

PINGS = 10
SMALL, LARGE = 1 << 10, 1 << 16
"""Bytes of messages that fit into any packet, and of such that need full ones."""
MOST_BYTES = float(1 << 28)
CLOCKS_APART = 1.0
_MTU = "a tunnel's MTU is smaller than it says: lower it on both machines (ip link set DEV mtu 1280)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Args:
    connect: seconds until an address must have answered a call.
    answer: seconds for any single answer.
    flood: seconds of each measurement of bandwidth.
    """

    connect: float = 5.0
    answer: float = 5.0
    flood: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What this machine tells others of itself. Args:

    setting: of ``SHOAL_INTERFACE``.
    ports: of ``SHOAL_PORT_RANGE``.
    """

    setting: str | None = None
    ports: range | None = None


async def check_path(
    to: Endpoint, limits: Limits | None = None, *, offer: Offer | None = None, resolve: Resolve | None = None
) -> AsyncIterator[Finding]:
    """Test the path to `to` and back. Ends after a bounded time, whatever the other does.

    Args:
        resolve: instead of the system's resolver.
    """
    limits = limits or Limits()
    try:
        connection = await dial(to, limits.connect, resolve=resolve)
    except Trouble as trouble:
        yield fail("path", f"{to} {trouble}", trouble.mend)
        return
    try:
        async for finding in _Test(to, connection, limits, offer or Offer()).run():
            yield finding
    except Trouble as trouble:
        mend = "look at what shoal doctor --listen says there, and at firewalls between"
        yield fail("path", f"{to} {trouble}", trouble.mend or mend)
    finally:
        connection[1].close()


class _Test:
    """One test over one connection."""

    def __init__(self, to: Endpoint, connection: Connection, limits: Limits, offer: Offer) -> None:
        self._to, self._limits, self._offer = to, limits, offer
        self._reader, self._writer = connection
        self._me = str(self._writer.get_extra_info("sockname")[0])

    async def run(self) -> AsyncIterator[Finding]:
        async for finding in self._greet():
            yield finding
        trips, offset = await self._ping()
        yield ok("path", f"{self._to} answers: round trip {show_seconds(min(trips))} at least, "
                         f"{show_seconds(statistics.median(trips))} in the middle")  # fmt: skip
        yield judge_clocks(offset, min(trips))
        yield await self._way_back()
        stuck = await self._packets()
        yield stuck or ok("packets", f"messages of {show_bytes(LARGE)} pass both ways")
        if stuck:
            return
        flooded = await self._flood()
        yield flooded
        if flooded.state == "ok":
            await self._ask(do="bye")

    async def _greet(self) -> AsyncIterator[Finding]:
        nonce = new_nonce()
        hello = await self._ask(protocol=PROTOCOL, version=__version__, nonce=nonce)
        if hello.get("busy") is True:
            raise Trouble("tests another machine just now", "try again in a minute")
        if hello.get("protocol") != PROTOCOL or hello.get("nonce") != nonce:
            raise Trouble("speaks another protocol", "is it shoal doctor --listen, of the same version, at this port?")
        if hello.get("version") != __version__:
            text = f"{__version__} here, {words(hello, 'version')} there"
            yield warn("version", text, "install the same one on all machines")
        seen = words(hello, "you")
        if _plain(seen) != _plain(self._me):
            yield note("path", f"it sees this machine as {seen}, not {self._me}: there is a NAT between")

    async def _ping(self) -> tuple[list[float], float]:
        """Round trips, and by how much the other's clock is ahead, from the shortest (as NTP does)."""
        loop, trips, best = asyncio.get_running_loop(), list[float](), (float("inf"), 0.0)
        for _ in range(PINGS):
            began, clock = loop.time(), datetime.now(UTC).timestamp()
            there = number(await self._ask(do="ping"), "now")
            trips.append(loop.time() - began)
            best = min(best, (trips[-1], there - clock - trips[-1] / 2))
        return trips, best[1]

    async def _way_back(self) -> Finding:
        """Let the other dial the address that peers would be told (field case A4: reachable one way only)."""
        limits = self._limits
        try:
            offered = process_addresses.offered_host(self._me, self._offer.setting)
            async with open_door(offered, self._offer.ports, limits.answer) as door:
                asked = {"host": offered, "port": door.at.port, "nonce": door.nonce, "within": limits.connect}
                await say(self._writer, limits.answer, do="dial", **asked)
                told = words(await hear(self._reader, limits.answer + 3 * limits.connect), "dialled")
                came = await door.opened(limits.answer) if told == "ok" else False
        except UserError as error:
            return fail("way back", str(error), error.mend or "choose another address or port range")
        if came:
            return ok("way back", f"it reaches this machine at {door.at}, too")
        return warn(
            "way back",
            f"it does not reach this machine at {door.at} ({told if told != 'ok' else 'somebody else answers there'}):"
            " workers here can call others, but nobody can call them",
            "let SHOAL_PORT_RANGE in through the firewall, set SHOAL_INTERFACE to an address that others reach, "
            "or join both to one VPN",
        )

    async def _packets(self) -> Finding | None:
        """What is wrong if small messages pass and large ones do not."""
        for way, move in (("there", self._send), ("back", self._fetch)):
            await move(SMALL, self._limits.answer)
            try:
                await move(LARGE, self._limits.answer)
            except Trouble as trouble:
                text = f"{show_bytes(SMALL)} pass, {show_bytes(LARGE)} do not on the way {way}: it {trouble}"
                return fail("packets", text, _MTU)
        return None

    async def _flood(self) -> Finding:
        """Bandwidth each way. A path may pass single messages and stop under load."""
        rates: dict[str, str] = {}
        for way, move in (("there", self._send), ("back", self._fetch)):
            try:
                rates[way] = show_bandwidth(round(await move(MOST_BYTES, self._limits.flood)))
            except Trouble as trouble:
                text = f"single messages pass, but under load it stops on the way {way}: it {trouble}"
                return fail("bandwidth", text, f"if the path is not just very slow: {_MTU}")
        return ok("bandwidth", f"{rates['there']} there, {rates['back']} back, of payload")

    async def _send(self, most: float, seconds: float) -> float:
        """Bytes/s at which the other took what was sent."""
        await say(self._writer, self._limits.answer, do="take")
        await pour(self._writer, seconds, most, self._limits.answer)
        told = await hear(self._reader, self._limits.answer + seconds)
        return number(told, "nbytes") / max(number(told, "seconds"), 1e-9)

    async def _fetch(self, most: float, seconds: float) -> float:
        """Bytes/s at which the other's bytes came."""
        await say(self._writer, self._limits.answer, do="give", seconds=seconds, most=most)
        nbytes, took = await drink(self._reader, self._limits.answer, 4 * self._limits.answer + seconds)
        return nbytes / took

    async def _ask(self, **asked: object) -> dict[str, object]:
        await say(self._writer, self._limits.answer, **asked)
        return await hear(self._reader, self._limits.answer)


def judge_clocks(offset: float, trip: float) -> Finding:
    """Judge by how many seconds the other's clock is ahead, known to within half a round trip."""
    text = f"the other is {abs(offset):.3f} s {'ahead' if offset > 0 else 'behind'} (± {trip / 2:.3f} s)"
    if abs(offset) > CLOCKS_APART + trip:
        return warn("clocks", text, "synchronise both (timedatectl set-ntp true)")
    return ok("clocks", text)


def _plain(address: str) -> str:
    """Without its zone, and an IPv4 address as such even where it came through an IPv6 socket."""
    return address.partition("%")[0].removeprefix("::ffff:")
