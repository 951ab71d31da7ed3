"""TCP sockets on the event loop, one per pair of peers; payloads are received straight into their tensors."""

from __future__ import annotations

import asyncio
import json
import socket
from contextlib import suppress

from shoal.errors import PeerLost
from shoal.transport import greeting
from shoal.transport._protocol import Hello, Meeting, OnFrame, OnLost, refusal
from shoal.transport.frame import (
    LIMITS,
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
from shoal.transport.outbox import Outbox
from shoal.world import Peer

HELLO_SECONDS = 10.0
"""A caller that has not introduced itself by then is hung up on."""
PENDING_CALLERS = 64
"""Callers that are greeted at once; further ones wait in the listening socket's queue."""

_TURN_BYTES = 8 * 1024**2  # after so many bytes others get a turn on the loop
_PIECES = 512  # buffers of one system call; Linux takes 1,024
_LAST_WORDS = 1.0  # seconds in which what a peer said before its connection broke may still be read


class _Ended(OSError):
    """The peer ended its direction."""


class _Connection:
    """One socket to one peer. The reading task owns the socket and closes it."""

    def __init__(
        self, peer: Peer, sock: socket.socket, *, on_frame: OnFrame, on_lost: OnLost, pin: bool, limits: Limits
    ) -> None:
        self.heard = 0
        self._peer, self._sock, self._pin, self._limits = peer, sock, pin, limits
        self._on_frame, self._on_lost = on_frame, on_lost
        self._loop = asyncio.get_running_loop()
        self._closing = self._ended = False
        self._ahead = memoryview(bytearray(PREFIX.size + limits.header_bytes))  # read ahead of what is asked for
        self._start = self._stop = 0
        self._since_turn = 0
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._outbox = Outbox(peer, self._write, self._break)
        self._task = self._loop.create_task(self._run(), name=f"receive from {peer}")

    async def send(self, frame: Frame, priority: int) -> None:
        head, flat = pack(frame, limits=self._limits)
        parts = [memoryview(head), *(view(part) for part in flat if part.numel())]
        rest = parts
        if self._outbox.idle:
            with suppress(OSError):  # the writer meets it again
                rest = self._push(parts)
            if not rest:
                return
        await self._outbox.send(rest, step=frame.tag.step, priority=priority, begun=rest is not parts)

    async def close(self, grace: float) -> None:
        """Send what is queued, then end my direction and wait for the peer to end its own, all within `grace`."""
        self._closing = True
        with suppress(TimeoutError):
            async with asyncio.timeout(grace):
                await self._outbox.flush()
                with suppress(OSError):
                    self._sock.shutdown(socket.SHUT_WR)
                await asyncio.wait([self._task])
        self._task.cancel()
        await asyncio.wait([self._task])

    def _end(self, why: str) -> None:
        if self._ended:
            return
        self._ended = True
        self._outbox.end(why)
        if not self._closing:
            self._on_lost(self._peer, why)

    def _break(self, why: str) -> None:
        self._end(f"its connection broke: {why}")
        self._task.cancel()

    # ------------------------------------------------------------------------------------------------- writing

    def _push(self, parts: list[memoryview]) -> list[memoryview]:
        """Hand the kernel what it takes at once; returns what is left, `parts` itself if it took nothing."""
        try:
            sent = self._sock.sendmsg(parts[:_PIECES])
        except (BlockingIOError, InterruptedError):
            return parts
        whole = 0
        while whole < len(parts) and sent >= len(parts[whole]):
            sent -= len(parts[whole])
            whole += 1
        return [parts[whole][sent:], *parts[whole + 1 :]] if whole < len(parts) else []

    async def _write(self, parts: list[memoryview]) -> None:
        try:
            while parts := self._push(parts):
                await self._writable()
        except OSError:
            # A peer that fails says why before it closes. Let the reader come to that first; it then ends this task.
            await asyncio.sleep(_LAST_WORDS)
            raise

    async def _writable(self) -> None:
        ready = self._loop.create_future()
        self._loop.add_writer(self._sock, lambda: ready.done() or ready.set_result(None))
        try:
            await ready
        finally:
            self._loop.remove_writer(self._sock)

    # ------------------------------------------------------------------------------------------------- reading

    async def _run(self) -> None:
        why = "its connection was given up"
        try:
            await self._read()
        except Malformed as error:
            why = f"sent what is no frame: {error}"
        except OSError as error:
            why = "its connection closed" if isinstance(error, _Ended) else f"its connection broke: {error}"
        finally:
            self._end(why)
            await self._outbox.ended()
            self._sock.close()

    async def _read(self) -> None:
        while True:
            header, payload = lengths(await self._take(PREFIX.size), limits=self._limits)
            frame = blank(await self._take(header), payload, pin=self._pin, limits=self._limits)
            for tensor in frame.body.tensors:
                if tensor.numel():
                    await self._fill(view(flat_bytes(tensor)))
            check(frame)
            if not self._closing:
                self._on_frame(self._peer, frame)

    async def _take(self, length: int) -> memoryview:
        """The next `length` bytes, valid until the next call. Reads ahead: a small frame costs one system call."""
        if self._start + length > len(self._ahead):
            rest = bytes(self._ahead[self._start : self._stop])
            self._ahead[: len(rest)] = rest
            self._start, self._stop = 0, len(rest)
        while self._stop - self._start < length:
            self._stop += await self._receive(self._ahead[self._stop :])
        self._start += length
        taken = self._ahead[self._start - length : self._start]
        if self._start == self._stop:
            self._start = self._stop = 0
        return taken

    async def _fill(self, into: memoryview) -> None:
        """Fill `into`: first from what was read ahead, then from the socket directly."""
        ahead = min(len(into), self._stop - self._start)
        into[:ahead] = self._ahead[self._start : self._start + ahead]
        self._start += ahead
        while ahead < len(into):
            ahead += await self._receive(into[ahead:])

    async def _receive(self, into: memoryview) -> int:
        got = await self._loop.sock_recv_into(self._sock, into)
        if not got:
            raise _Ended
        self.heard += got
        self._since_turn += got
        if self._since_turn > _TURN_BYTES:
            self._since_turn = 0
            await asyncio.sleep(0)
        return got


class Streams:
    """Args:
    limits: what one frame may make its receiver allocate.
    """

    def __init__(self, *, limits: Limits = LIMITS) -> None:
        self._limits = limits
        self._connections: dict[Peer, _Connection] = {}
        self._arrivals: dict[Peer, asyncio.Future[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._listener: socket.socket | None = None

    async def start(self, meeting: Meeting, *, on_frame: OnFrame, on_lost: OnLost, pin: bool = False) -> None:
        """See `Transport.start`. Of a pair of peers the one later in the alphabet calls."""
        self._meeting, self._on_frame, self._on_lost, self._pin = meeting, on_frame, on_lost, pin
        me, loop = meeting.hello.peer, asyncio.get_running_loop()
        until = loop.time() + meeting.deadline
        self._arrivals = {peer: loop.create_future() for peer in meeting.peers if peer > me}
        self._listener = meeting.listen()
        port = self._listener.getsockname()[1]
        self._keep(loop.create_task(self._accept(self._listener), name="accept"))
        addresses = await meeting.exchange("streams", json.dumps([meeting.host, port]))
        calls = [self._call(peer, *json.loads(addresses[peer]), until=until) for peer in meeting.peers if peer < me]
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
        for peer, arrival in self._arrivals.items():
            try:
                async with asyncio.timeout_at(until):
                    await asyncio.shield(arrival)
            except TimeoutError:
                raise PeerLost(peer, 0, f"did not connect within {meeting.deadline:g} s") from None

    async def send(self, peer: Peer, frame: Frame, *, priority: int = 0) -> None:
        await self._connections[peer].send(frame, priority)

    def heard(self, peer: Peer) -> int:
        return self._connections[peer].heard if peer in self._connections else 0

    async def close(self, grace: float) -> None:
        for task in self._tasks:
            task.cancel()
        for arrival in self._arrivals.values():
            if not arrival.cancel() and not arrival.cancelled():
                arrival.exception()  # has been seen, if anybody was to see it
        await asyncio.gather(*(connection.close(grace) for connection in self._connections.values()))
        if self._tasks:
            await asyncio.wait(self._tasks)
        if self._listener is not None:
            self._listener.close()

    # ---------------------------------------------------------------------------------------------- connecting

    async def _call(self, peer: Peer, host: str, port: int, *, until: float) -> None:
        where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
        try:
            sock.setblocking(False)
            async with asyncio.timeout_at(until):
                await asyncio.get_running_loop().sock_connect(sock, (host, port))
                refused = await greeting.call(sock, self._meeting.hello, to=peer)
            if refused is not None:
                raise PeerLost(peer, 0, f"refused this peer, {self._meeting.hello.peer!r}, at {where}: {refused}")
        except BaseException as error:
            sock.close()
            if isinstance(error, TimeoutError):
                raise PeerLost(peer, 0, f"no answer at {where} within {self._meeting.deadline:g} s") from None
            if isinstance(error, OSError):
                raise PeerLost(peer, 0, f"cannot be reached at {where}: {greeting.reason(error)}") from None
            raise
        self._connect(peer, sock)

    async def _accept(self, listener: socket.socket) -> None:
        loop, room = asyncio.get_running_loop(), asyncio.Semaphore(PENDING_CALLERS)

        async def greet(sock: socket.socket) -> None:
            try:
                with suppress(OSError):  # TimeoutError is one
                    async with asyncio.timeout(HELLO_SECONDS):
                        await self._greet(sock)
            finally:
                room.release()

        while True:
            await room.acquire()
            try:
                sock, _ = await loop.sock_accept(listener)
            except OSError:  # too many open files, or the caller has gone again
                room.release()
                await asyncio.sleep(0.1)
                continue
            self._keep(loop.create_task(greet(sock), name="greet a caller"))

    async def _greet(self, sock: socket.socket) -> None:
        """Accept or refuse one caller. A refused one leaves no trace, unless it is a peer of this very run."""
        try:
            theirs, to = await greeting.hear(sock)
            why = self._refusal(theirs, to)
            greeting.answer(sock, self._meeting.hello.peer, why)
        except BaseException:
            sock.close()
            raise
        if why is None:
            self._connect(theirs.peer, sock)
            self._arrivals[theirs.peer].set_result(None)
        else:
            sock.close()

    def _refusal(self, theirs: Hello, to: Peer) -> str | None:
        mine = self._meeting.hello
        if why := refusal(mine, theirs):
            arrival = self._arrivals.get(theirs.peer)
            if theirs.run == mine.run and arrival is not None and not arrival.done():
                arrival.set_exception(PeerLost(theirs.peer, 0, f"was refused: {why}"))
            return why
        if to != mine.peer:
            return f"this is peer {mine.peer!r}, not {to!r}"
        if theirs.peer not in self._arrivals:
            return f"no call of a peer {theirs.peer!r} is expected"
        if self._arrivals[theirs.peer].done():
            return f"another process already is peer {theirs.peer!r} of this run"
        return None

    def _connect(self, peer: Peer, sock: socket.socket) -> None:
        self._connections[peer] = _Connection(
            peer, sock, on_frame=self._on_frame, on_lost=self._on_lost, pin=self._pin, limits=self._limits
        )

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


strategy = Streams
