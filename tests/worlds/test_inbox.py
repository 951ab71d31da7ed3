"""The inbox: order, waits, deadlines, lost peers."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import Late, PeerLost
from shoal.world import Message, Tag, dense, only_bytes
from shoal.worlds.clock import VirtualLoop
from shoal.worlds.inbox import Inbox


def message(source: str, kind: str, step: int = 0, nbytes: int = 0) -> Message:
    return Message(source, Tag(kind, step), only_bytes(nbytes))


def run(body: Callable[[VirtualLoop, Inbox], Coroutine[Any, Any, Any]]) -> Any:
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(body(loop, Inbox(loop, 2, deadline=10.0)))
    finally:
        loop.close()


ARRIVALS = st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from("xy"), st.integers(0, 2)), max_size=30)


@given(ARRIVALS, st.lists(st.integers(0, 5), max_size=30))
def test_takes_agree_with_a_plain_list(arrivals: list[tuple[str, str, int]], choices: list[int]) -> None:
    """Against a list that is searched from the front, whatever is taken, by tag, by kind, by condition, or dropped."""

    async def body(loop: VirtualLoop, inbox: Inbox) -> None:
        left: list[Message] = []
        feed = [message(source, kind, step, nbytes=n) for n, (source, kind, step) in enumerate(arrivals)]
        for choice in choices:
            for arriving in feed[:2]:
                inbox.put(arriving)
                left.append(arriving)
            del feed[:2]
            if not left:
                continue
            wanted = left[choice % len(left)]
            kind, step = wanted.tag.kind, wanted.tag.step
            if choice < 2:
                got = await inbox.take(wanted.tag, wanted.source)
                expected = next(m for m in left if (m.source, m.tag) == (wanted.source, wanted.tag))
            elif choice == 2:
                got = await inbox.take_any(kind)
                expected = next(m for m in left if m.tag.kind == kind)
            elif choice == 3:
                got = await inbox.take_any(kind, lambda m, step=step: m.tag.step == step)
                expected = next(m for m in left if (m.tag.kind, m.tag.step) == (kind, step))
            else:
                old = [m for m in left if m.tag.kind == kind and m.tag.step < step]
                assert inbox.discard(kind, step) == len(old)
                left = [m for m in left if m not in old]
                continue
            assert got is expected
            left.remove(expected)
            assert len(inbox) == len(left)
            assert inbox.look("x") == [m for m in left if m.tag.kind == "x"]

    run(body)


def test_a_waiting_take_gets_the_message_before_a_take_of_any() -> None:
    async def body(loop: VirtualLoop, inbox: Inbox) -> None:
        some = loop.create_task(inbox.take_any("x"))
        exact = loop.create_task(inbox.take(Tag("x", 1), "a"))
        await asyncio.sleep(0)
        inbox.put(message("a", "x", 1, 11))
        inbox.put(message("a", "x", 1, 12))
        assert (await exact).body.nbytes == 11
        assert (await some).body.nbytes == 12

    run(body)


def test_waiting_takes_are_served_in_order() -> None:
    async def body(loop: VirtualLoop, inbox: Inbox) -> None:
        waits = [loop.create_task(inbox.take(Tag("x"), "a")) for _ in range(3)]
        await asyncio.sleep(0)
        for n in range(3):
            inbox.put(message("a", "x", 0, n))
        assert [(await wait).body.nbytes for wait in waits] == [0, 1, 2]

    run(body)


def test_deadlines_of_their_own_and_by_default() -> None:
    async def body(loop: VirtualLoop, inbox: Inbox) -> None:
        with pytest.raises(Late, match=r"peer 'a' at step 4: no message 'x' of step 4 from 'a' within 2 s"):
            await inbox.take(Tag("x", 4), "a", 2.0)
        assert loop.time() == 2.0
        early = loop.create_task(inbox.take(Tag("x"), "a"))
        await asyncio.sleep(3.0)
        late = loop.create_task(inbox.take_any("y"))
        with pytest.raises(Late):
            await early
        assert loop.time() == 12.0
        with pytest.raises(Late, match="any 'y'"):
            await late
        assert loop.time() == 15.0
        assert inbox.waiting() == []

    run(body)


def test_a_default_deadline_is_not_moved_by_takes_that_were_served() -> None:
    async def body(loop: VirtualLoop, inbox: Inbox) -> None:
        for n in range(1000):
            wait = loop.create_task(inbox.take(Tag("x", n), "a"))
            await asyncio.sleep(0.005)
            inbox.put(message("a", "x", n))
            await wait
        started = loop.time()
        with pytest.raises(Late):
            await inbox.take(Tag("x", 0), "a")
        assert loop.time() == pytest.approx(started + 10.0)

    run(body)


def test_memory_of_served_waits_is_bounded_and_no_message_is_kept() -> None:
    """Case C16: nothing of a finished exchange stays behind."""

    async def body(loop: VirtualLoop, inbox: Inbox) -> None:
        forever = loop.create_task(inbox.take(Tag("never"), "b"))
        kept: list[weakref.ref[torch.Tensor]] = []
        for n in range(2000):
            wait = loop.create_task(inbox.take(Tag("x", n), "a"))
            await asyncio.sleep(0)
            inbox.put(Message("a", Tag("x", n), dense(torch.ones(1))))
            kept.append(weakref.ref((await wait).body.tensors[0]))
            del wait
        await asyncio.sleep(0)
        assert not any(tensor() is not None for tensor in kept)
        assert len(inbox._default) < 200
        assert not inbox._queues
        assert not inbox._kinds
        assert len(inbox._waits) == 1
        forever.cancel()

    run(body)


def test_a_lost_peer_fails_waits_but_its_messages_stay() -> None:
    async def body(loop: VirtualLoop, inbox: Inbox) -> None:
        inbox.put(message("a", "x", 1))
        inbox.put(message("a", "x", 1))
        waits = [loop.create_task(inbox.take(Tag("y", step), "a")) for step in (3, 4)]
        other = loop.create_task(inbox.take(Tag("y", 3), "b"))
        any_y = loop.create_task(inbox.take_any("y"))
        await asyncio.sleep(0)
        inbox.lose("a", "connection closed")
        inbox.lose("a", "again")
        for step, wait in zip((3, 4), waits, strict=True):
            with pytest.raises(PeerLost, match=f"peer 'a' at step {step}: connection closed"):
                await wait
        await inbox.take(Tag("x", 1), "a")
        await inbox.take_any("x")
        with pytest.raises(PeerLost, match="step 9"):
            await inbox.take(Tag("x", 9), "a")
        assert not other.done()
        assert not any_y.done()
        inbox.lose("b", "gone too")
        with pytest.raises(PeerLost, match="'b'"):
            await other
        with pytest.raises(PeerLost, match="gone too"):
            await any_y
        with pytest.raises(PeerLost, match="gone too"):
            await inbox.take_any("x")

    run(body)


def test_a_wait_cancelled_at_the_moment_of_arrival_gives_the_message_back_in_its_place() -> None:
    async def body(loop: VirtualLoop, inbox: Inbox) -> None:
        wait = loop.create_task(inbox.take(Tag("x"), "a"))
        await asyncio.sleep(0)
        inbox.put(message("a", "x", 0, 1))
        inbox.put(message("a", "x", 0, 2))
        wait.cancel()
        with pytest.raises(asyncio.CancelledError):
            await wait
        assert [m.body.nbytes for m in inbox.look("x")] == [1, 2]
        assert [(await inbox.take(Tag("x"), "a")).body.nbytes for _ in range(2)] == [1, 2]

    run(body)


def test_a_condition_that_raises_fails_its_own_take_only() -> None:
    async def body(loop: VirtualLoop, inbox: Inbox) -> None:
        broken = loop.create_task(inbox.take_any("x", lambda m: 1 // 0 == 0))
        fine = loop.create_task(inbox.take_any("x"))
        await asyncio.sleep(0)
        inbox.put(message("a", "x"))
        with pytest.raises(ZeroDivisionError):
            await broken
        assert (await fine).source == "a"

    run(body)


def test_waits_are_described() -> None:
    async def body(loop: VirtualLoop, inbox: Inbox) -> None:
        tasks = [loop.create_task(inbox.take(Tag("x", 3, ("b", 1)), "a")), loop.create_task(inbox.take_any("y"))]
        await asyncio.sleep(0)
        assert inbox.waiting() == ["'x' ('b', 1) of step 3 from 'a'", "any 'y'"]
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        assert inbox.waiting() == []

    run(body)
