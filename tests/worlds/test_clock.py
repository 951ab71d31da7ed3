"""The virtual loop: it jumps, never spins, shuffles equal times by seed, and notices that nothing can happen."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from shoal.errors import Deadlock
from shoal.worlds.clock import VirtualLoop


@contextmanager
def looping(tie_seed: int | None = None) -> Iterator[VirtualLoop]:
    loop = VirtualLoop(tie_seed=tie_seed)
    try:
        yield loop
    finally:
        loop.close()


def run(body: Callable[[VirtualLoop], Coroutine[Any, Any, Any]], tie_seed: int | None = None) -> Any:
    with looping(tie_seed) as loop:
        return loop.run_until_complete(body(loop))


def test_sleeping_takes_virtual_time_only() -> None:
    async def body(loop: VirtualLoop) -> float:
        await asyncio.sleep(1e6)
        await asyncio.gather(asyncio.sleep(3.0), asyncio.sleep(2.0))
        return loop.time()

    assert run(body) == 1e6 + 3.0


@pytest.mark.parametrize("start", [0.0, 1.0, 1e9, 1e15])
@pytest.mark.parametrize("delay", [0.0, 1e-12, 1e-7, 1.0])
def test_no_delay_is_too_small_and_no_clock_too_large(start: float, delay: float) -> None:
    """A delay below the clock's own resolution takes no time, but it ends."""

    async def body(loop: VirtualLoop) -> float:
        await asyncio.sleep(start)
        for _ in range(100):
            await asyncio.sleep(delay)
            await asyncio.sleep(math.ulp(loop.time()))
        return loop.time()

    assert run(body) >= start


def test_the_clock_is_the_timers_own_value() -> None:
    async def body(loop: VirtualLoop) -> list[float]:
        seen: list[float] = []
        times = [0.1 * n for n in range(1, 50)]
        for when in times:
            loop.call_at(when, lambda: seen.append(loop.time()))
        await asyncio.sleep(10)
        assert seen == times
        return seen

    run(body)


def order_of_ties(tie_seed: int | None) -> list[int]:
    async def body(loop: VirtualLoop) -> list[int]:
        seen: list[int] = []
        for n in range(10):
            loop.call_at(1.0, seen.append, 2 * n)
            loop.at(1.0, seen.append, 2 * n + 1)
        await asyncio.sleep(2.0)
        return seen

    return run(body, tie_seed)


def test_equal_times_keep_the_order_of_asking_or_are_shuffled_by_seed() -> None:
    plain = order_of_ties(None)
    assert [n for n in plain if n % 2 == 0] == list(range(0, 20, 2))
    assert [n for n in plain if n % 2 == 1] == list(range(1, 20, 2))
    assert order_of_ties(3) == order_of_ties(3)
    assert order_of_ties(3) != order_of_ties(4)
    assert sorted(order_of_ties(3)) == list(range(20))


def test_an_earlier_time_is_never_shuffled_behind_a_later_one() -> None:
    async def body(loop: VirtualLoop) -> list[float]:
        seen: list[float] = []
        for n in reversed(range(100)):
            loop.at(n / 7, lambda _: seen.append(loop.time()), None)
        await asyncio.sleep(100)
        return seen

    assert run(body, 5) == [n / 7 for n in range(100)]


def test_the_past_is_now() -> None:
    async def body(loop: VirtualLoop) -> float:
        await asyncio.sleep(5.0)
        woken = loop.create_future()
        loop.at(1.0, woken.set_result, None)
        await woken
        return loop.time()

    assert run(body) == 5.0


def test_cancelled_timers_do_not_happen_and_do_not_pile_up() -> None:
    async def body(loop: VirtualLoop) -> list[int]:
        seen: list[int] = []
        for n in range(10_000):
            timer = loop.call_later(600.0, seen.append, n)
            if n % 1000:
                timer.cancel()
                timer.cancel()
        assert len(loop._agenda) < 1000
        await asyncio.sleep(601.0)
        return seen

    assert run(body) == [1000 * n for n in range(10)]


def test_wait_for_works() -> None:
    async def body(loop: VirtualLoop) -> float:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(loop.create_future(), 7.0)
        return loop.time()

    assert run(body) == 7.0


def test_nothing_to_come_is_a_deadlock() -> None:
    async def body(loop: VirtualLoop) -> None:
        await asyncio.sleep(1.0)
        await loop.create_future()

    with looping() as loop:
        task = loop.create_task(body(loop))
        with pytest.raises(Deadlock, match="at 1 s"):
            loop.run_until_complete(task)
        task.cancel()
        loop.run_until_complete(asyncio.wait([task]))


def test_idle_timers_do_not_hide_a_deadlock_but_expire_while_others_are_busy() -> None:
    async def body(loop: VirtualLoop) -> list[float]:
        seen: list[float] = []
        loop.call_idle(2.0, lambda: seen.append(loop.time()))
        loop.call_idle(3.0, lambda: seen.append(loop.time())).cancel()
        await asyncio.sleep(5.0)
        loop.call_idle(1.0, seen.append, 0.0)
        stuck = loop.create_future()
        loop.on_stuck = lambda: stuck.set_result(None)
        await stuck
        assert loop.time() == 5.0
        return seen

    assert run(body) == [2.0]


def test_a_source_of_events_comes_before_the_agenda() -> None:
    class Source:
        def __init__(self, seen: list[str]) -> None:
            self.times, self.seen = [1.0, 2.5], seen

        def next_time(self) -> float:
            return self.times[0] if self.times else math.inf

        def happen(self, now: float) -> None:
            assert self.times.pop(0) == now
            self.seen.append(f"source {now}")

    async def body(loop: VirtualLoop) -> list[str]:
        seen: list[str] = []
        loop.source = Source(seen)
        for when in (0.5, 1.0, 2.0, 3.0):
            loop.at(when, seen.append, f"agenda {when}")
        await asyncio.sleep(3.0)
        return seen

    assert run(body) == ["agenda 0.5", "source 1.0", "agenda 1.0", "agenda 2.0", "source 2.5", "agenda 3.0"]


def test_threads_are_refused() -> None:
    async def body(loop: VirtualLoop) -> None:
        with pytest.raises(RuntimeError, match=r"World\.run"):
            loop.call_soon_threadsafe(print)

    run(body)
