"""Pacing: computations take what another device would take, never less; what is late is paid back and counted."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Hashable
from time import monotonic, sleep

import pytest
import torch

from shoal.world import Work
from shoal.worlds.pacing import Pace
from shoal.worlds.process_lanes import Lanes


def by_flops(work: Work) -> float:
    return work.flops


def lanes(pace: Pace, spans: list[tuple[str, float, float]]) -> Lanes:
    return Lanes(
        torch.device("cpu"),
        seed=0,
        threads=1,
        on_span=lambda lane, label, start, stop: spans.append((label, start, stop)),
        pace=pace,
    )


def test_computations_take_their_devices_time_and_never_less() -> None:
    async def main() -> None:
        pace, spans = Pace(by_flops), []
        lane = lanes(pace, spans)
        began = monotonic()
        for n in range(4):
            await lane.run(lambda: None, Work(str(n), flops=0.03))
        assert monotonic() - began >= 4 * 0.03 - 0.001
        assert all(stop - start >= 0.02 for _, start, stop in spans)
        assert pace.count.asked_s == pytest.approx(0.12) and pace.count.debt_s < 0.12
        lane.close(1.0)

    asyncio.run(main())


def test_what_took_too_long_is_counted_and_paid_back() -> None:
    """A computation of 10 ms that took 60: the next ones are as much shorter, so that the sum is right again."""
    pace = Pace(by_flops)
    start = monotonic()
    sleep(0.06)
    assert pace.hold("compute", 0.01, start) >= start + 0.06
    assert pace.count.debt_s >= 0.05
    assert pace.room("compute", 0.1) == pytest.approx(0.05, abs=0.049)
    assert pace.room("update", 0.1) == 0.1  # another lane owes nothing
    began = monotonic()
    pace.hold("compute", 10.0, began - 9.99 + pace.room("compute", 0.0))
    assert pace.count.debt_s < 0.2 and pace.count.asked_s == 10.01


def test_marks_come_at_their_share_of_the_interval_in_order() -> None:
    async def main() -> None:
        pace, spans, reached = Pace(by_flops), [], list[tuple[Hashable, float]]()
        lane = lanes(pace, spans)

        def work(mark: Callable[[Hashable], None]) -> None:
            for key in "abcd":
                mark(key)

        shares: dict[Hashable, float] = {"a": 0.25, "b": 0.5, "d": 1.0}  # c has none: it comes with the one before
        began = monotonic()
        async for key in lane.reach(work, Work("backward", flops=0.2, marks=shares)):
            reached.append((key, monotonic() - began))
        assert [key for key, _ in reached] == list("abcd")
        for (_, when), due in zip(reached, (0.05, 0.1, 0.1, 0.2), strict=True):
            assert when >= due - 0.005
        assert reached[0][1] < 0.2 or spans[0][2] - began > 0.3  # the first one before the end, unless all is late
        lane.close(1.0)

    asyncio.run(main())


def test_the_worlds_end_waits_for_no_device() -> None:
    async def main() -> None:
        pace, spans = Pace(by_flops), []
        lane = lanes(pace, spans)
        running = asyncio.ensure_future(lane.run(lambda: None, Work("for ever", flops=1000.0)))
        await asyncio.sleep(0.02)
        lane.close(5.0)
        with pytest.raises(asyncio.CancelledError):
            await running
        assert not any(thread.name == "compute lane" for thread in threading.enumerate())

    asyncio.run(main())
