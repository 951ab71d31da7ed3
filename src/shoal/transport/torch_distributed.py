"""Gloo's point-to-point messages, one reading and one writing thread per peer.

Gloo receives only what was asked for, in the exact size, and its `Work` can only be waited for in a thread. So a frame
begins with a block of a fixed size that holds prefix, header and, if it fits, the payload; the reader learns from it
what else to receive. A block that announces an empty header ends the connection. Gloo's receives cannot be abandoned
one by one: those from a peer that no longer answers are ended by letting the whole group time out. Gloo may miss that
in the middle of a message; then its thread is left behind, as a daemon, and holds up nobody.

Frames are in host memory, so Gloo serves peers with GPUs too. NCCL's own point-to-point calls are not used: both
directions of a pair share one stream, so two large sends that cross would wait for each other.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor

from shoal.transport._protocol import Meeting, OnFrame, OnLost
from shoal.transport.engines import Group, PrefixStore, abandon, brief, gloo_group, keep
from shoal.transport.frame import (
    LIMITS,
    MAGIC,
    PREFIX,
    Frame,
    Limits,
    Malformed,
    blank,
    check,
    flat_bytes,
    lengths,
    pack,
    view,
)
from shoal.transport.lane import Lane
from shoal.transport.outbox import Outbox
from shoal.world import Peer

BLOCK_BYTES = 4096
PIECE_BYTES = 4 * 1024**2
"""A larger tensor travels in pieces, so that its arrival shows as progress."""

_EVER = timedelta(days=365)  # whoever uses the transport watches for silence; a wait here ends with the connection
_JOIN_SECONDS = 0.5
_LAST_WORDS = 1.0  # seconds in which what a peer said before its connection broke may still be read
_END = PREFIX.pack(MAGIC, 0, 0)
_FRAMES = 0  # the tag of Gloo's messages

Packed: TypeAlias = tuple[bytes, list[Tensor]]


class _Wire:
    """Blocks to and from one peer. `put` and `get` block, and are called by one thread each."""

    def __init__(self, group: Group, rank: int, *, pin: bool, limits: Limits) -> None:
        self.heard = 0
        self._group, self._rank, self._pin, self._limits = group, rank, pin, limits
        self._in = torch.zeros(BLOCK_BYTES, dtype=torch.uint8)
        self._out = torch.zeros(BLOCK_BYTES, dtype=torch.uint8)

    def put(self, head: bytes, flat: list[Tensor]) -> None:
        text = torch.frombuffer(bytearray(head), dtype=torch.uint8)
        if len(head) + sum(part.numel() for part in flat) <= BLOCK_BYTES:
            text, flat = torch.cat([text, *flat]), []
        first = text[:BLOCK_BYTES]
        self._out[: len(first)] = first
        for part in (self._out, text[BLOCK_BYTES:], *flat):
            for piece in part.split(PIECE_BYTES):
                if piece.numel():
                    self._group.send([piece], self._rank, _FRAMES).wait(_EVER)

    def get(self) -> Frame | None:
        """The next frame; None when the peer has ended the connection.

        Raises:
            Malformed: what arrived is no frame.
            RuntimeError: Gloo's connection broke.
        """
        self._receive(self._in)
        header, payload = lengths(view(self._in[: PREFIX.size]), limits=self._limits)
        if header == 0:
            return None
        at = PREFIX.size + header
        if at > BLOCK_BYTES:
            rest = torch.empty(at - BLOCK_BYTES, dtype=torch.uint8)
            self._receive(rest)
            text = torch.cat([self._in[PREFIX.size :], rest])
        else:
            text = self._in[PREFIX.size : at]
        frame = blank(view(text), payload, pin=self._pin, limits=self._limits)
        inline = at + payload <= BLOCK_BYTES
        for tensor in frame.body.tensors:
            flat = flat_bytes(tensor)
            if inline:
                flat.copy_(self._in[at : at + flat.numel()])
                at += flat.numel()
            else:
                for piece in flat.split(PIECE_BYTES):
                    self._receive(piece)
        check(frame)
        return frame

    def release(self) -> None:
        """Let go of the group: its sockets live as long as anything refers to it, a traceback for instance."""
        del self._group

    def _receive(self, into: Tensor) -> None:
        if into.numel():
            self._group.recv([into], self._rank, _FRAMES).wait(_EVER)
            self.heard += into.numel()


class _Connection:
    """One peer: an outbox before the writing thread, and the reading thread."""

    def __init__(self, peer: Peer, wire: _Wire, *, on_frame: OnFrame, on_lost: OnLost) -> None:
        self.wire, self._peer = wire, peer
        self._on_frame, self._on_lost = on_frame, on_lost
        self._closing = self._lost = False
        self._loop = asyncio.get_running_loop()
        self._over = asyncio.Event()  # the reading thread has ended
        self._lane = Lane(f"send to {peer}")
        self.outbox = Outbox[Packed](peer, self._write, self._lose)
        self._reader = threading.Thread(target=self._read, name=f"receive from {peer}", daemon=True)
        self._reader.start()

    async def end(self) -> None:
        """Send what is queued, say that no more follows and wait until the peer has said so too."""
        self._closing = True
        await self.outbox.flush()
        if not self._over.is_set():
            with suppress(RuntimeError):
                await self._lane.submit(partial(self.wire.put, _END, []))
        await self._over.wait()

    @property
    def stuck(self) -> bool:
        return not (self._over.is_set() and self._lane.idle)

    async def close(self) -> bool:
        """Release the threads, which should hang in Gloo no more; false if one does."""
        self._closing = True
        self.outbox.end("this peer has left")
        await self.outbox.ended()
        self._lane.finish()
        written = self._lane.join(_JOIN_SECONDS)
        self._reader.join(_JOIN_SECONDS)
        self.wire.release()
        return written and not self._reader.is_alive()

    async def _write(self, packed: Packed) -> None:
        try:
            await self._lane.submit(partial(self.wire.put, *packed))
        except RuntimeError as error:
            # A peer that fails says why before it closes. Let the reader come to that first; it then ends this task.
            await asyncio.sleep(_LAST_WORDS)
            raise OSError(f"its connection broke: {brief(error)}") from None

    def _read(self) -> None:
        why = "its connection closed"
        try:
            while (frame := self.wire.get()) is not None:
                self._loop.call_soon_threadsafe(self._arrive, frame)
        except Malformed as error:
            why = f"sent what is no frame: {error}"
        except RuntimeError as error:
            if "closed by peer" not in str(error) and "reset by peer" not in str(error):
                why = f"its connection broke: {brief(error)}"
        with suppress(RuntimeError):  # the loop has closed
            self._loop.call_soon_threadsafe(self._read_to_the_end, why)

    def _arrive(self, frame: Frame) -> None:
        if not self._closing:
            self._on_frame(self._peer, frame)

    def _read_to_the_end(self, why: str) -> None:
        self._over.set()
        if self._closing:
            return
        # The peer waits for my own end. It comes after what is being written, which the peer may have taken already.
        answer = self._lane.submit(partial(self.wire.put, _END, []))

        def answered(done: asyncio.Future[None]) -> None:
            if not done.cancelled():
                done.exception()  # the peer may be gone altogether
                self._lose(why)

        answer.add_done_callback(answered)

    def _lose(self, why: str) -> None:
        self.outbox.end(why)
        if not self._closing and not self._lost:
            self._lost = True
            self._on_lost(self._peer, why)


class TorchDistributed:
    """Args:
    limits: what one frame may make its receiver allocate.
    """

    def __init__(self, *, limits: Limits = LIMITS) -> None:
        self._limits = limits
        self._group: Group | None = None
        self._lane: Lane | None = None
        self._connections: dict[Peer, _Connection] = {}

    async def start(self, meeting: Meeting, *, on_frame: OnFrame, on_lost: OnLost, pin: bool = False) -> None:
        meeting.refuse_port_range("Gloo")
        me, peers = meeting.hello.peer, meeting.peers
        await meeting.exchange("torch-distributed", "")
        if len(peers) == 1:
            return
        self._lane = Lane("gloo")
        connect = partial(
            gloo_group, rank=peers.index(me), size=len(peers), host=meeting.host, deadline=meeting.deadline
        )
        group = await self._lane.submit(partial(connect, PrefixStore("torch-distributed", meeting.store)))
        self._group = group
        for rank, peer in enumerate(peers):
            if peer != me:
                wire = _Wire(group, rank, pin=pin, limits=self._limits)
                self._connections[peer] = _Connection(peer, wire, on_frame=on_frame, on_lost=on_lost)

    async def send(self, peer: Peer, frame: Frame, *, priority: int = 0) -> None:
        packed = pack(frame, limits=self._limits)
        await self._connections[peer].outbox.send(packed, step=frame.tag.step, priority=priority)

    def heard(self, peer: Peer) -> int:
        return self._connections[peer].wire.heard if peer in self._connections else 0

    async def close(self, grace: float) -> None:
        connections = self._connections.values()
        with suppress(TimeoutError):
            async with asyncio.timeout(grace):
                await asyncio.gather(*(connection.end() for connection in connections))
        if self._lane is not None:
            if self._group is not None and any(connection.stuck for connection in connections):
                await self._lane.submit(partial(abandon, [self._group]))
            free = await asyncio.gather(*(connection.close() for connection in connections))
            if self._group is not None and not all(free):
                keep([self._group])
            self._lane.finish()
            self._lane.join(_JOIN_SECONDS)
        self._connections.clear()
        self._group = None


strategy = TorchDistributed
