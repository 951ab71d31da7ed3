"""Queues inside one process, for tests and for several peers in one program; bytes are packed as on a real wire."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial

from torch import Tensor

from shoal.transport._protocol import Meeting, OnFrame, OnLost
from shoal.transport.frame import LIMITS, PREFIX, Frame, Limits, blank, flat_bytes, pack
from shoal.transport.outbox import Outbox
from shoal.world import Peer

Packed = tuple[bytes, list[Tensor]]

_rooms: dict[str, dict[Peer, InProcess]] = {}
"""Run → who is there. A room is forgotten when its last peer leaves."""


class InProcess:
    """Peers may live on one event loop or on loops of several threads.

    Args:
        limits: what one frame may make its receiver allocate.
    """

    def __init__(self, *, limits: Limits = LIMITS) -> None:
        self._limits = limits
        self._outboxes: dict[Peer, Outbox[Packed]] = {}
        self._heard: dict[Peer, int] = {}
        self._lost: set[Peer] = set()
        self._closing = False
        self._room: dict[Peer, InProcess] = {}

    async def start(self, meeting: Meeting, *, on_frame: OnFrame, on_lost: OnLost, pin: bool = False) -> None:
        self._me, self._run, self._pin = meeting.hello.peer, meeting.hello.run, pin
        self._on_frame, self._on_lost = on_frame, on_lost
        self._loop = asyncio.get_running_loop()
        others = [peer for peer in meeting.peers if peer != self._me]
        self._heard = dict.fromkeys(others, 0)
        self._outboxes = {peer: Outbox(peer, partial(self._write, peer), partial(self._lose, peer)) for peer in others}
        self._room = _rooms.setdefault(self._run, {})
        self._room[self._me] = self
        await meeting.exchange("in-process", "")

    async def send(self, peer: Peer, frame: Frame, *, priority: int = 0) -> None:
        packed = pack(frame, limits=self._limits)
        await self._outboxes[peer].send(packed, step=frame.tag.step, priority=priority)

    def heard(self, peer: Peer) -> int:
        return self._heard[peer]

    async def close(self, grace: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(grace):
                await asyncio.gather(*(outbox.flush() for outbox in self._outboxes.values()))
        self._closing = True
        if self._room.pop(self._me, None) is not None and not self._room:
            del _rooms[self._run]
        for other in list(self._room.values()):
            other._loop.call_soon_threadsafe(other._lose, self._me, "its connection closed")
        for outbox in self._outboxes.values():
            outbox.end("this peer has left")
            await outbox.ended()

    async def _write(self, peer: Peer, packed: Packed) -> None:
        other = self._room.get(peer)
        if other is None:
            raise OSError("its connection closed")
        frame, nbytes = _copy(*packed, pin=other._pin, limits=self._limits)
        other._loop.call_soon_threadsafe(other._arrive, self._me, frame, nbytes)
        await asyncio.sleep(0)  # one frame per turn of the loop, so that an urgent one can overtake

    def _arrive(self, peer: Peer, frame: Frame, nbytes: int) -> None:
        self._heard[peer] += nbytes
        if not self._closing:
            self._on_frame(peer, frame)

    def _lose(self, peer: Peer, why: str) -> None:
        self._outboxes[peer].end(why)
        if not self._closing and peer not in self._lost:
            self._lost.add(peer)
            self._on_lost(peer, why)


def _copy(head: bytes, flat: list[Tensor], *, pin: bool, limits: Limits) -> tuple[Frame, int]:
    """What the receiver makes of these bytes, and how many they are."""
    payload = sum(part.numel() for part in flat)
    frame = blank(head[PREFIX.size :], payload, pin=pin, limits=limits)
    for into, part in zip(frame.body.tensors, flat, strict=True):
        flat_bytes(into).copy_(part)
    return frame, len(head) + payload


strategy = InProcess
