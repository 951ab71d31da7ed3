"""Latency and clock offset of a pair of hosts, from round trips of empty messages."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import median, quantiles
from typing import Any

from shoal.probe.figures import Settings
from shoal.probe.letters import hear, tell
from shoal.world import Peer, World

PING, PONG = "probe-ping", "probe-pong"
LEAST = 8
"""Round trips in any case, however long they take."""
WITHIN = 60.0
_IQR = 1.349  # quartiles of a normal distribution are so many standard deviations apart

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Echo:
    """What the one who pings found out. Seconds; the offset is the other's clock minus mine."""

    latency_s: float
    least_latency_s: float
    jitter_s: float
    pings: int
    offset_s: float | None
    offset_error_s: float | None


async def ping(world: World, to: Peer, number: int, settings: Settings, wall: Clock | None) -> dict[str, Any]:
    """Send round trips to `to`, which runs `pong` with the same number. The first one warms up and does not count."""
    trips: list[tuple[float, float | None]] = []
    began = world.now()
    while len(trips) <= settings.pings:
        if len(trips) > LEAST and world.now() - began > settings.ping_seconds:
            break
        sent_wall, sent = wall() if wall else None, world.now()
        await tell(world, to, PING, number, {"last": False})
        told = await hear(world, to, PONG, number, within=WITHIN)
        trip = world.now() - sent - told["held"]
        trips.append((trip, _offset(sent_wall, told, wall)))
    await tell(world, to, PING, number, {"last": True})
    return asdict(summary(trips[1:]))


async def pong(world: World, to: Peer, number: int, wall: Clock | None) -> dict[str, Any]:
    """Answer the pings of `to`, and say how long each answer took and what the clock showed."""
    while True:
        told = await hear(world, to, PING, number, within=WITHIN)
        if told["last"]:
            return {}
        came, came_wall = world.now(), wall() if wall else None
        left_wall = wall() if wall else None
        await tell(world, to, PONG, number, {"held": world.now() - came, "came": came_wall, "left": left_wall})


def summary(trips: Sequence[tuple[float, float | None]]) -> Echo:
    """What (round trip, clock offset) pairs say. The offset is that of the quickest round trip: its two ways have the
    least queueing in them, and it is wrong by at most half of it (RFC 5905, section 10)."""
    seconds = [trip for trip, _ in trips]
    least, offset = min(trips, key=lambda trip: trip[0])
    low, _, high = quantiles(seconds, n=4) if len(seconds) > 1 else (0.0, 0.0, 0.0)
    return Echo(
        latency_s=median(seconds) / 2,
        least_latency_s=least / 2,
        jitter_s=(high - low) / _IQR / math.sqrt(2.0),
        pings=len(seconds),
        offset_s=offset,
        offset_error_s=None if offset is None else least / 2,
    )


def _offset(sent: float | None, told: dict[str, Any], wall: Clock | None) -> float | None:
    """The other's clock minus mine, from the four stamps of a round trip (RFC 5905, section 8)."""
    if sent is None or wall is None or told["came"] is None:
        return None
    return ((told["came"] - sent) + (told["left"] - wall())) / 2
