"""The transport suite on TCP sockets, and what only they can meet: strangers and nonsense."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

import pytest
import torch

from shoal.errors import PeerLost
from shoal.transport import Frame, Hello, Limits
from shoal.transport.engines import HashStore
from shoal.transport.frame import MAGIC, PREFIX, pack
from shoal.transport.greeting import call
from shoal.transport.streams import Streams
from shoal.world import Tag, dense
from shoal.worlds.rendezvous import Rendezvous
from transport.suite import End, TransportSuite, connected, run


class TestStreams(TransportSuite):
    name = "streams"


def address(end: End) -> tuple[str, int]:
    assert isinstance(end.transport, Streams) and end.transport._listener is not None
    return end.transport._listener.getsockname()


@asynccontextmanager
async def caller(end: End) -> AsyncIterator[socket.socket]:
    """Somebody who connects to `end`."""
    with socket.socket() as sock:
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, address(end))
        yield sock


@asynccontextmanager
async def impostor(limits: Limits | None = None) -> AsyncIterator[tuple[End, socket.socket]]:
    """Peer a of a run of a and b, and a socket that a takes for b."""
    store = HashStore()
    meetings = [Rendezvous(store, me=me, peers=["a", "b"], host="127.0.0.1", deadline=20.0) for me in "ab"]
    await asyncio.gather(*(meeting.join() for meeting in meetings))
    end = End("a", Streams(limits=limits) if limits else Streams(), meetings[0])
    starting = asyncio.create_task(end.start())
    await meetings[1].exchange("streams", json.dumps(["127.0.0.1", 1]))  # a listens before it tells its address
    try:
        async with caller(end) as sock:
            assert await call(sock, meetings[1].hello, to="a") is None
            await starting
            yield end, sock
    finally:
        await end.close(0.0)
        meetings[1].close()


async def untouched(ends: dict[str, End]) -> None:
    """Nobody was lost, and messages still go."""
    await ends["a"].send("b", torch.arange(3))
    assert torch.equal((await ends["b"].take())[1].body.tensors[0], torch.arange(3))
    assert all(end.lost.empty() for end in ends.values())


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"run": "another"}, "it belongs to another run"),
        ({"version": 99}, "version 99"),
        ({"digest": "deadbeef"}, "plan deadbeef"),
        ({}, "another process already is peer 'b'"),
        ({"peer": "z"}, "no call of a peer 'z' is expected"),
        ({"peer": "a"}, "no call of a peer 'a' is expected"),
    ],
)
def test_who_does_not_belong_is_refused_with_the_reason(change: dict[str, object], why: str) -> None:
    """Cases A6, A10 and D9: a stray run, a cloned peer or another plan, and the run that is going on is untouched."""

    async def test() -> None:
        async with connected("streams", ["a", "b"]) as ends:
            async with caller(ends["a"]) as sock:
                hello = replace(ends["b"].meeting.hello, **change)  # type: ignore[arg-type]
                refused = await call(sock, hello, to="a")
                assert refused is not None and why in refused
                assert await asyncio.get_running_loop().sock_recv(sock, 1) == b""
            await untouched(ends)

    run(test())


def test_whoever_means_another_peer_is_told_who_is_here() -> None:
    async def test() -> None:
        async with connected("streams", ["a", "b"]) as ends, caller(ends["a"]) as sock:
            with pytest.raises(OSError, match="who answers there is 'a'"):
                await call(sock, ends["b"].meeting.hello, to="c")
            await untouched(ends)

    run(test())


@pytest.mark.parametrize(
    "text", [b"GET / HTTP/1.1\r\n\r\n", b"SHLH\xff\xff\xff\xff", b"SHLH\0\0\0\2[]", b"SHLH\0\0\0\2{}", b"x"]
)
def test_strangers_are_hung_up_on(text: bytes) -> None:
    async def test() -> None:
        async with connected("streams", ["a", "b"]) as ends:
            loop = asyncio.get_running_loop()
            async with caller(ends["a"]) as sock, caller(ends["a"]):  # the second says nothing, and holds up nobody
                await loop.sock_sendall(sock, text)
                if len(text) > 1:
                    with suppress(ConnectionResetError):
                        assert await loop.sock_recv(sock, 1) == b""
                await untouched(ends)

    run(test())


GOOD, _ = pack(Frame(Tag("x"), dense(torch.ones(2))))


@pytest.mark.parametrize(
    "text",
    [
        b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        PREFIX.pack(MAGIC, 2, 0) + b"{}",
        PREFIX.pack(MAGIC, 2**31, 0),
        PREFIX.pack(MAGIC, 10, 2**62),
        GOOD.replace(b"[2]", b"[9]"),
        GOOD.replace(b"float32", b"objects"),
    ],
)
def test_nonsense_costs_a_peer_its_connection(text: bytes) -> None:
    """The peer that sent it is named; nothing is allocated for what it announced."""

    async def test() -> None:
        async with impostor() as (end, sock):
            await asyncio.get_running_loop().sock_sendall(sock, text + bytes(64))
            peer, why = await end.lost.get()
            assert peer == "b" and "sent what is no frame" in why
            assert end.frames.empty()
            with pytest.raises(PeerLost, match="peer 'b'"):
                await end.send("b", torch.ones(1))

    run(test())


def test_a_frame_above_the_receivers_limit_is_refused_by_name() -> None:
    async def test() -> None:
        async with impostor(Limits(payload_bytes=1000)) as (end, sock):
            head, flat = pack(Frame(Tag("x"), dense(torch.zeros(251))))
            await asyncio.get_running_loop().sock_sendall(sock, head + bytes(flat[0].numpy()))
            peer, why = await end.lost.get()
            assert peer == "b" and "payload of 1004 bytes" in why

    run(test())


def test_a_connection_cut_in_the_middle_of_a_frame_delivers_nothing_of_it() -> None:
    async def test() -> None:
        async with impostor() as (end, sock):
            head, _ = pack(Frame(Tag("x"), dense(torch.zeros(1000))))
            await asyncio.get_running_loop().sock_sendall(sock, head + bytes(100))
            sock.shutdown(socket.SHUT_WR)
            assert await end.lost.get() == ("b", "its connection closed")
            assert end.frames.empty()

    run(test())


def test_frames_may_arrive_in_any_pieces() -> None:
    async def test() -> None:
        async with impostor() as (end, sock):
            loop = asyncio.get_running_loop()
            x = torch.arange(10_000)
            head, flat = pack(Frame(Tag("x", 1, ("a",)), dense(x, x[:3])))
            text = (head + b"".join(bytes(part.numpy()) for part in flat)) * 2
            at = 0
            for size in [1, 2, 13, 14, 50, 1, 7, 4000, 80_000, len(text)]:
                await loop.sock_sendall(sock, text[at : at + size])
                at += size
                await asyncio.sleep(0.001)
            for _ in range(2):
                _, frame = await end.take()
                assert torch.equal(frame.body.tensors[0], x) and torch.equal(frame.body.tensors[1], x[:3])

    run(test())


def test_a_peer_of_the_run_with_another_plan_fails_both() -> None:
    """Case D9: nobody waits for the deadline, and the two plans are named."""

    async def test() -> None:
        store = HashStore()
        meetings = [Rendezvous(store, me=me, peers=["a", "b"], host="127.0.0.1", deadline=20.0) for me in "ab"]
        await asyncio.gather(*(meeting.join("1111") for meeting in meetings))
        meetings[1].hello = Hello(run=meetings[1].hello.run, peer="b", digest="2222")
        ends = [End(meeting.hello.peer, Streams(), meeting) for meeting in meetings]
        outcomes = await asyncio.gather(*(end.start() for end in ends), return_exceptions=True)
        for outcome in outcomes:
            assert isinstance(outcome, PeerLost)
            assert "2222" in outcome.why and "1111" in outcome.why
        for end in ends:
            await end.close(0.0)

    run(test())
