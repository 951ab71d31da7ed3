"""What every transport must do, as one suite that runs on each.

Subclass it in a test module and set `name`::

    from transport.suite import TransportSuite

    class TestStreams(TransportSuite):
        name = "streams"

Peers share one process and one event loop, and meet through an in-memory store.
"""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

import pytest
import torch

from shoal import registry
from shoal.errors import PeerLost
from shoal.transport import Frame, Limits, Transport
from shoal.transport.engines import HashStore
from shoal.world import Payload, Peer, Tag, dense
from shoal.worlds.rendezvous import Rendezvous

T = TypeVar("T")
NAMES = ["a", "b", "c"]
PATIENCE = 60.0

TENSORS = {
    "float32": torch.linspace(-1, 1, 12).reshape(3, 4),
    "bfloat16": torch.arange(7, dtype=torch.bfloat16) / 3,
    "float64": torch.linspace(0, 1, 5, dtype=torch.float64),
    "int64": torch.tensor([2**62, -1]),
    "bool": torch.tensor([True, False, True]),
    "complex": torch.tensor([1 + 2j, 3 - 1j]).conj(),
    "scalar": torch.tensor(2.5, dtype=torch.float64),
    "no elements": torch.zeros(0, 3),
    "transposed": torch.arange(6.0).reshape(2, 3).t(),
    "every third": torch.arange(10)[1::3],
    "channels last": torch.arange(24.0).reshape(1, 2, 3, 4).to(memory_format=torch.channels_last),
    "expanded": torch.tensor([1.0, 2.0]).expand(3, 2),
    "needs gradient": torch.ones(3, requires_grad=True),
}


@dataclass
class End:
    """One peer's end of a transport, with what has reached it."""

    me: Peer
    transport: Transport
    meeting: Rendezvous
    frames: asyncio.Queue[tuple[Peer, Frame]] = field(default_factory=asyncio.Queue)
    lost: asyncio.Queue[tuple[Peer, str]] = field(default_factory=asyncio.Queue)

    async def start(self) -> None:
        await self.transport.start(
            self.meeting,
            on_frame=lambda peer, frame: self.frames.put_nowait((peer, frame)),
            on_lost=lambda peer, why: self.lost.put_nowait((peer, why)),
        )

    async def send(self, to: Peer, *tensors: torch.Tensor, kind: str = "x", step: int = 0, priority: int = 0) -> None:
        await self.transport.send(to, Frame(Tag(kind, step), dense(*tensors)), priority=priority)

    async def take(self) -> tuple[Peer, Frame]:
        return await self.frames.get()

    async def close(self, grace: float = 5.0) -> None:
        await self.transport.close(grace)
        self.meeting.close()


@asynccontextmanager
async def connected(name: str, names: list[Peer] | None = None, **options: Any) -> AsyncIterator[dict[Peer, End]]:
    """All peers of a run, connected over transport `name`; closed at the end."""
    names, store = names or NAMES, HashStore()

    async def one(me: Peer) -> End:
        meeting = await Rendezvous(store, me=me, peers=names, host="127.0.0.1", deadline=20.0).join()
        return End(me, registry.strategy("transport", name)(**options), meeting)

    ends = dict(zip(names, await asyncio.gather(*map(one, names)), strict=True))
    try:
        await asyncio.gather(*(end.start() for end in ends.values()))
        yield ends
    finally:
        await asyncio.gather(*(end.close() for end in ends.values()))


def run(test: Coroutine[Any, Any, T]) -> T:
    """Run a test with a bound on its time."""

    async def bounded() -> T:
        async with asyncio.timeout(PATIENCE):
            return await test

    return asyncio.run(bounded())


class TransportSuite:
    name: ClassVar[str]

    def connected(self, names: list[Peer] | None = None, **options: Any) -> Any:
        return connected(self.name, names, **options)

    def test_it_is_a_transport(self) -> None:
        assert self.name in registry.names("transport")

    def test_every_kind_of_tensor_crosses(self) -> None:
        """Case D15: whatever their layout, the values arrive."""

        async def test() -> None:
            async with self.connected(["a", "b"]) as ends:
                for n, tensor in enumerate(TENSORS.values()):
                    await ends["a"].send("b", tensor, step=n)
                for n, (what, sent) in enumerate(TENSORS.items()):
                    _, frame = await ends["b"].take()
                    (got,) = frame.body.tensors
                    assert frame.tag.step == n
                    assert (got.dtype, got.shape, got.requires_grad) == (sent.dtype, sent.shape, False), what
                    assert torch.equal(got, sent.detach()), what

        run(test())

    def test_a_frame_arrives_as_it_was_sent(self) -> None:
        async def test() -> None:
            async with self.connected(["a", "b"]) as ends:
                tag = Tag("mix", 2**40, ("block-0", 3, ("nested", (-1, ""))))
                body = Payload(tuple(TENSORS.values()), 12345, "top-k")
                await ends["b"].transport.send("a", Frame(tag, body))
                await ends["b"].transport.send("a", Frame(Tag("é", -1), Payload((), 7, ""), "abort"))
                peer, frame = await ends["a"].take()
                assert (peer, frame.tag, frame.purpose) == ("b", tag, "message")
                assert (frame.body.nbytes, frame.body.codec) == (12345, "top-k")
                for got, sent in zip(frame.body.tensors, TENSORS.values(), strict=True):
                    assert torch.equal(got, sent.detach())
                assert (await ends["a"].take())[1] == Frame(Tag("é", -1), Payload((), 7, ""), "abort")

        run(test())

    def test_large_messages_cross_each_other(self) -> None:
        """Case E4: larger than all buffers on the way, in all directions at the same time."""
        big = torch.arange(6_000_000, dtype=torch.float32)

        async def test() -> None:
            async with self.connected() as ends:
                pairs = [(a, b) for a in NAMES for b in NAMES if a != b]
                await asyncio.gather(*(ends[a].send(b, big + ord(a), torch.ones(3)) for a, b in pairs))
                for _, b in pairs:
                    peer, frame = await ends[b].take()
                    assert torch.equal(frame.body.tensors[0], big + ord(peer))
                    assert ends[b].transport.heard(peer) > big.numel() * 4

        run(test())

    def test_messages_keep_their_order(self) -> None:
        async def test() -> None:
            async with self.connected(["a", "b"]) as ends:
                sizes = [0, 1, 100_000, 3, 2_000_000, 1]
                sends = [ends["a"].send("b", torch.full((size,), n), step=n) for n, size in enumerate(sizes)]
                await asyncio.gather(*sends)
                assert [(await ends["b"].take())[1].tag.step for _ in sizes] == list(range(len(sizes)))

        run(test())

    def test_a_higher_priority_overtakes_what_waits(self) -> None:
        """A small urgent message does not wait behind many large ones."""
        big = torch.zeros(4_000_000)

        async def test() -> None:
            async with self.connected(["a", "b"]) as ends:
                loop = asyncio.get_running_loop()
                sends = [loop.create_task(ends["a"].send("b", big, step=n)) for n in range(6)]
                await asyncio.sleep(0)  # all are under way
                await ends["a"].send("b", torch.ones(1), kind="urgent", priority=5)
                await asyncio.gather(*sends)
                kinds = [(await ends["b"].take())[1].tag.kind for _ in range(7)]
                assert kinds.index("urgent") < 3

        run(test())

    def test_a_sent_tensor_may_be_written(self) -> None:
        async def test() -> None:
            async with self.connected(["a", "b"]) as ends:
                x = torch.ones(3_000_000)
                await ends["a"].send("b", x)
                x.zero_()
                _, frame = await ends["b"].take()
                assert frame.body.tensors[0].add_(1).eq(2).all()

        run(test())

    def test_cancelled_sends_leave_the_stream_whole(self) -> None:
        async def test() -> None:
            async with self.connected(["a", "b"]) as ends:
                loop = asyncio.get_running_loop()
                x = torch.arange(5_000_000)
                sends = [loop.create_task(ends["a"].send("b", x, step=n)) for n in range(4)]
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                for send in sends[:3]:
                    send.cancel()
                await asyncio.gather(*sends, return_exceptions=True)
                await ends["a"].send("b", torch.ones(1), step=9)
                steps = []
                while 9 not in steps:
                    _, frame = await ends["b"].take()
                    steps.append(frame.tag.step)
                    if frame.tag.step < 9:
                        assert torch.equal(frame.body.tensors[0], x)
                assert 3 in steps and 2 not in steps

        run(test())

    @pytest.mark.parametrize(
        ("part", "error"),
        [((1.5,), TypeError), ((None,), TypeError), ((True,), TypeError), (("x" * 70_000,), ValueError)],
    )
    def test_what_cannot_be_sent_is_refused_at_once(self, part: tuple[Any, ...], error: type[Exception]) -> None:
        async def test() -> None:
            async with self.connected(["a", "b"]) as ends:
                with pytest.raises(error):
                    await ends["a"].transport.send("b", Frame(Tag("x", 0, part)))
                with pytest.raises(TypeError):
                    await ends["a"].send("b", torch.eye(3).to_sparse())
                await ends["a"].send("b", torch.ones(2))
                assert torch.equal((await ends["b"].take())[1].body.tensors[0], torch.ones(2))

        run(test())

    def test_an_end_is_noticed_after_all_that_was_sent(self) -> None:
        async def test() -> None:
            async with self.connected() as ends:
                big = torch.arange(2_000_000)
                await ends["c"].send("a", big)
                await ends["c"].send("a", torch.ones(1))
                await ends["c"].transport.close(5.0)
                assert torch.equal((await ends["a"].take())[1].body.tensors[0], big)
                assert (await ends["a"].take())[0] == "c"
                for end in (ends["a"], ends["b"]):
                    assert await end.lost.get() == ("c", "its connection closed")
                    with pytest.raises(PeerLost, match="peer 'c' at step 4: its connection closed"):
                        await end.send("c", torch.ones(1), step=4)
                await ends["a"].send("b", torch.ones(1))  # the others go on
                assert (await ends["b"].take())[0] == "a"
                assert ends["a"].lost.empty()

        run(test())

    def test_frames_over_the_limit_are_refused_by_the_sender(self) -> None:
        async def test() -> None:
            async with self.connected(["a", "b"], limits=Limits(payload_bytes=100, tensors=2)) as ends:
                with pytest.raises(ValueError, match="100 bytes"):
                    await ends["a"].send("b", torch.zeros(26))
                with pytest.raises(ValueError, match="2 tensors"):
                    await ends["a"].send("b", *[torch.zeros(1)] * 3)
                await ends["a"].send("b", torch.zeros(25))
                assert (await ends["b"].take())[0] == "a"

        run(test())

    def test_a_run_of_one_peer_needs_nobody(self) -> None:
        async def test() -> None:
            async with self.connected(["alone"]) as ends:
                assert ends["alone"].frames.empty()

        run(test())

    def test_a_missing_peer_is_named(self) -> None:
        """Case A11."""

        async def test() -> None:
            store = HashStore()
            meeting = Rendezvous(store, me="a", peers=["a", "b"], host="127.0.0.1", deadline=0.2)
            with pytest.raises(PeerLost, match="peer 'b' at step 0: did not come"):
                await meeting.join()

        run(test())

    def test_nothing_is_left_behind(self) -> None:
        async def test() -> None:
            async with self.connected() as ends:
                await ends["a"].send("b", torch.ones(1000))
                await ends["b"].take()

        run(test())
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(5):
            run(test())
        gc.collect()
        assert [thread.name for thread in threading.enumerate() if not thread.name.startswith("pytest")] == [
            "MainThread"
        ]
        assert len(os.listdir("/proc/self/fd")) <= before
