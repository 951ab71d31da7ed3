"""Links that are as slow as they are told: a pure state machine of packets, on the caller's clock.

A packet from host to host passes the source's uplink, the pipe of its link, the way itself (latency, jitter, loss) and
the target's downlink. Uplink, pipe and downlink are servers: each sends one packet at a time at its rate, waits in fair
queues (deficit round robin over flows, Shreedhar and Varghese 1995), so that flows share as in the fluid network, and
drops from the longest queue what exceeds its depth. Servers cut through: a packet that meets no queue takes its length
over the *slowest* rate once, not over each rate.

All times come from the packets' own schedule, never from when the caller got round to asking: a caller that is late
delays packets, but loses no rate.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

from shoal.network.jitter import jittered

LEAST_PACKETS = 8
"""A queue holds at least as many of the longest packets, however slow its server."""
JITTER_MEMORY = 5.0
"""Delays vary as slowly as queues elsewhere do: a way forgets its delay in so many times its jitter. Faster, and
packets would have to overtake one another."""

Packet = Any
Flow = Hashable


@dataclass(slots=True)
class Way:
    """From one host to another, in this direction; may be changed at any time.

    Args:
        latency_s: mean, one way.
        jitter_s: standard deviation of the latency (log-normal, correlated over `JITTER_MEMORY` times itself; packets
            stay in order).
        loss: share of packets that get lost, independently of one another.
        up: false while the way is cut: nothing arrives, not even what is under way.
    """

    pipe: str
    latency_s: float
    jitter_s: float = 0.0
    loss: float = 0.0
    up: bool = True
    head_s: float = -math.inf  # when the first and the last byte of the newest packet get through
    tail_s: float = -math.inf
    _knot: int = field(default=-2, repr=False)  # of the jitter: standard normal at equidistant times, and between them
    _here: float = field(default=0.0, repr=False)
    _there: float = field(default=0.0, repr=False)

    def delay(self, now: float, random: Random) -> float:
        """Of a packet that enters now; `now` must not go back."""
        if not self.jitter_s or not self.latency_s:
            return self.latency_s
        knot, share = divmod(now / (JITTER_MEMORY * self.jitter_s), 1.0)
        if knot != self._knot:
            self._here = self._there if knot == self._knot + 1 else random.gauss(0.0, 1.0)
            self._knot, self._there = int(knot), random.gauss(0.0, 1.0)
        mood = (self._here * (1.0 - share) + self._there * share) / math.hypot(1.0 - share, share)  # variance 1
        return jittered(self.latency_s, self.jitter_s, mood)


@dataclass(slots=True)
class Count:
    """Packets and bytes that a server has sent and dropped."""

    packets: int = 0
    bytes: int = 0
    dropped: int = 0


class _Queue:
    __slots__ = ("bytes", "credit", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[tuple[Packet, int, float, Any]] = deque()
        self.bytes = 0
        self.credit = 0


Pass = Callable[[float, Packet, int, float, Any], None]
"""Told when a packet starts to leave a server: start, packet, bytes, end, what the caller attached."""


class Server:
    """Sends one packet after another at `rate` bytes/s; `depth_s` seconds' worth may wait."""

    def __init__(self, name: str, rate: float, depth_s: float, agenda: Agenda, then: Pass) -> None:
        self.name, self.rate, self.depth_s, self.count = name, rate, depth_s, Count()
        self._agenda, self._then = agenda, then
        self._free_s = -math.inf  # when the packet being sent has left
        self._queues: dict[Flow, _Queue] = {}  # flows that wait, in the order of their turns
        self._backlog = 0
        self._longest = 1500  # bytes; of all packets so far
        self._asked = False  # `_next` is on the agenda

    @property
    def backlog_bytes(self) -> int:
        return self._backlog

    def accept(self, now: float, flow: Flow, packet: Packet, size: int, whole_s: float, note: Any) -> None:
        """Take a packet whose first byte is here now and whose last one comes at `whole_s`."""
        self._longest = max(self._longest, size)
        if self._free_s <= now and not self._backlog:
            self._send(now, packet, size, whole_s, note)
            return
        queue = self._queues.get(flow)
        if queue is None:
            queue = self._queues[flow] = _Queue()
        queue.waiting.append((packet, size, whole_s, note))
        queue.bytes += size
        self._backlog += size
        if self._backlog > max(LEAST_PACKETS * self._longest, self.rate * self.depth_s):
            self._drop()
        self._ask()

    def _ask(self) -> None:
        if self._backlog and not self._asked:
            self._asked = True
            self._agenda.at(self._free_s, self._next)

    def _drop(self) -> None:
        """Drop the newest packet of the longest queue, which is what keeps a greedy flow from starving the others."""
        flow = max(self._queues, key=lambda flow: self._queues[flow].bytes)
        queue = self._queues[flow]
        _, size, _, _ = queue.waiting.pop()
        queue.bytes -= size
        self._backlog -= size
        self.count.dropped += 1
        if not queue.waiting:
            del self._queues[flow]

    def _next(self, now: float) -> None:
        """The packet before has left: send the next one, of the flow whose turn it is."""
        self._asked = False
        while self._queues:
            flow, queue = next(iter(self._queues.items()))
            if queue.credit < queue.waiting[0][1]:  # its turn is over: to the end of the line, with new credit
                del self._queues[flow]
                self._queues[flow] = queue
                queue.credit += self._longest
                continue
            packet, size, whole_s, note = queue.waiting.popleft()
            queue.credit -= size
            queue.bytes -= size
            self._backlog -= size
            if not queue.waiting:
                del self._queues[flow]
            self._send(now, packet, size, whole_s, note)
            break
        self._ask()

    def _send(self, now: float, packet: Packet, size: int, whole_s: float, note: Any) -> None:
        self._free_s = max(now, self._free_s) + size / self.rate
        self.count.packets += 1
        self.count.bytes += size
        self._then(now, packet, size, max(self._free_s, whole_s), note)


class Agenda:
    """What happens when, in the order of times; equal times in the order of asking."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._number = 0

    def at(self, when: float, what: Callable[..., None], *arguments: Any) -> None:
        """Call ``what(when, *arguments)`` at `when`."""
        self._number += 1
        heapq.heappush(self._heap, (when, self._number, what, arguments))

    def next_time(self) -> float:
        """When the next thing happens; inf if nothing is planned."""
        return self._heap[0][0] if self._heap else math.inf

    def advance(self, now: float) -> float:
        """Do all that is due; returns by how many seconds the latest of it was late."""
        late = 0.0
        while self._heap and self._heap[0][0] <= now:
            when, _, what, arguments = heapq.heappop(self._heap)
            late = max(late, now - when)
            what(when, *arguments)
        return late


class Shaper:
    """The network between hosts, which are numbered.

    Args:
        deliver: told the target and the packet when its last byte has arrived.
        up, down: bytes/s of each host's up- and downlink.
        ways: (source, target) → way.
        pipes: name → bytes/s.
        depth_s: of every queue.
    """

    def __init__(
        self,
        deliver: Callable[[int, Packet], None],
        *,
        up: Mapping[int, float],
        down: Mapping[int, float],
        ways: Mapping[tuple[int, int], Way],
        pipes: Mapping[str, float],
        depth_s: float = 0.2,
        seed: int = 0,
    ) -> None:
        self.agenda, self.ways = Agenda(), dict(ways)
        self.lost = 0
        self._deliver, self._random = deliver, Random(seed)
        self.up = {n: Server(f"up {n}", rate, depth_s, self.agenda, self._left_host) for n, rate in up.items()}
        self.pipes = {p: Server(p, rate, depth_s, self.agenda, self._left_pipe) for p, rate in pipes.items()}
        self.down = {n: Server(f"down {n}", rate, depth_s, self.agenda, self._arrived) for n, rate in down.items()}

    def offer(self, now: float, src: int, dst: int, flow: Flow, packet: Packet, size: int) -> None:
        """Host `src` sends a packet of `size` bytes to host `dst`; packets of one `flow` stay in order."""
        way = self.ways.get((src, dst))
        if way is None or not way.up:
            self.lost += 1
            return
        self.up[src].accept(now, flow, packet, size, now, (way, dst, flow))

    def _left_host(self, now: float, packet: Packet, size: int, end: float, note: tuple[Way, int, Flow]) -> None:
        self.pipes[note[0].pipe].accept(now, note[2], packet, size, end, note)

    def _left_pipe(self, now: float, packet: Packet, size: int, end: float, note: tuple[Way, int, Flow]) -> None:
        way = note[0]
        if not way.up or (way.loss and self._random.random() < way.loss):
            self.lost += 1
            return
        way.head_s = max(way.head_s, now + way.delay(now, self._random))  # nobody overtakes
        way.tail_s = max(way.tail_s, end + (way.head_s - now))
        self.agenda.at(way.head_s, self._came_through, packet, size, way.tail_s, note)

    def _came_through(self, now: float, packet: Packet, size: int, end: float, note: tuple[Way, int, Flow]) -> None:
        if note[0].up:
            self.down[note[1]].accept(now, note[2], packet, size, end, note)
        else:
            self.lost += 1

    def _arrived(self, now: float, packet: Packet, size: int, end: float, note: tuple[Way, int, Flow]) -> None:
        self.agenda.at(end, self._hand_over, packet, note)

    def _hand_over(self, now: float, packet: Packet, note: tuple[Way, int, Flow]) -> None:
        if note[0].up:
            self._deliver(note[1], packet)
        else:
            self.lost += 1
