"""Bandwidth of one direction: the sender pours chunks, the receiver watches, steers their size and says when to stop.

The receiver alone sees what arrives, so it decides. Chunks begin small, for a link of some kilobytes per second, and
grow with the rate until one takes a sixtieth of the window: enough points for a slope, few enough that handling them
costs nothing. Several are always under way, so that the sender never waits for its own hand-over.

What is measured is the rate of *payload*, which is what training gets: some 3 to 6 % below the rate of the wire, whose
packets carry headers too.
"""

from __future__ import annotations

from collections import deque
from dataclasses import asdict, dataclass
from typing import Any

import torch

from shoal.probe.figures import Settings
from shoal.probe.letters import hear, tell
from shoal.probe.rate import Arrivals, Rate
from shoal.world import Payload, Peer, Tag, Task, World, only_bytes

CHUNK, STEER, END = "probe-chunk", "probe-steer", "probe-end"
FIRST_BYTES, LARGEST_BYTES = 4 * 1024, 8 * 1024**2
IN_FLIGHT = 4
CHUNKS_PER_WINDOW, JUDGEMENTS_PER_WINDOW = 60, 20
ROUND_TRIPS_PER_WINDOW, ROUND_TRIPS = 10.0, 25.0
"""For how many round trips a rate must be steady, and how many may be spent on it."""
RECENT_SECONDS, RECENT_POINTS = 0.05, 100
"""What the receiver takes the current rate from, whichever is shorter: less would take the emptying of a buffer for a
rate."""
GRACE = 60.0


async def pour(world: World, to: Peer, number: int, round_trip: float, settings: Settings) -> dict[str, Any]:
    """Send chunks to `to`, which runs `catch` with the same number, until it has seen enough."""
    valve = _Valve()
    within = _bound(round_trip, settings) + GRACE
    listening = world.spawn(_listen(world, to, number, valve, within), "probe steering")
    under_way: deque[Task[None]] = deque()
    chunks = 0
    while not valve.closed:
        while len(under_way) < IN_FLIGHT:
            send = world.send(to, Tag(CHUNK, number), _body(world, valve.size))
            under_way.append(world.spawn(send, "probe chunk"))
            chunks += 1
        await under_way.popleft()
    for send in under_way:
        await send
    await listening
    await tell(world, to, END, number, {"chunks": chunks})
    return {}


async def catch(world: World, source: Peer, number: int, round_trip: float, settings: Settings) -> dict[str, Any]:
    """Take the chunks of `source` until their rate is settled or a bound is reached; then take what is still on its
    way, so that whoever comes next finds the link empty."""
    window = max(settings.window, ROUND_TRIPS_PER_WINDOW * round_trip)
    until = _bound(round_trip, settings)
    arrivals, chunks, asked, judged = Arrivals(), 0, FIRST_BYTES, 0.0
    rate: Rate | None = None
    within = until + GRACE
    while True:
        body = (await world.recv(Tag(CHUNK, number), source=source, within=within)).body
        chunks += 1
        if not arrivals.add(world.now(), body.nbytes):
            continue
        seconds = arrivals.times[-1] - arrivals.times[0]
        spent = seconds > until or arrivals.totals[-1] > settings.nbytes
        if spent or seconds > max(window, judged + window / JUDGEMENTS_PER_WINDOW):
            judged = seconds
            rate = arrivals.rate(window, settings.tolerance)
            if rate is not None and (rate.settled or spent):
                break
        wanted = _wanted(arrivals, window)
        if wanted is not None and body.nbytes == asked and not asked // 2 < wanted < 2 * asked:
            asked = min(wanted, 8 * asked)
            await tell(world, source, STEER, number, {"size": asked, "stop": False})
    await tell(world, source, STEER, number, {"size": asked, "stop": True})
    end = await hear(world, source, END, number, within=within)
    for _ in range(end["chunks"] - chunks):
        arrivals.add(world.now(), (await world.recv(Tag(CHUNK, number), source=source, within=within)).body.nbytes)
    seconds = arrivals.times[-1] - arrivals.times[0]
    return {**asdict(rate), "nbytes": arrivals.totals[-1], "seconds": seconds}


@dataclass(slots=True)
class _Valve:
    size: int = FIRST_BYTES
    closed: bool = False


async def _listen(world: World, to: Peer, number: int, valve: _Valve, within: float) -> None:
    while not valve.closed:
        told = await hear(world, to, STEER, number, within=within)
        valve.size, valve.closed = told["size"], told["stop"]


def _bound(round_trip: float, settings: Settings) -> float:
    return max(settings.seconds, ROUND_TRIPS * round_trip)


def _wanted(arrivals: Arrivals, window: float) -> int | None:
    """The power of two that a chunk should have at the current rate."""
    rate = arrivals.recent(RECENT_SECONDS, RECENT_POINTS)
    if rate is None:
        return None
    share = int(rate * window / CHUNKS_PER_WINDOW)
    return min(max(FIRST_BYTES, 1 << max(0, share.bit_length() - 1)), LARGEST_BYTES)


def _body(world: World, size: int) -> Payload:
    if not world.numeric:
        return only_bytes(size)
    return Payload((torch.zeros(size, dtype=torch.uint8, device=world.device),), size)
