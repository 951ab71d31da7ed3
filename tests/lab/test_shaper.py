"""The shaper against what its links are told to be, on a made clock."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.lab.shaper import Shaper, Way

MBPS = 1e6 / 8
Arrivals = list[tuple[float, int, object]]


class Bench:
    """A shaper whose clock is moved by hand; `arrived` holds (time, target, packet)."""

    def __init__(
        self,
        ways: Mapping[tuple[int, int], Way],
        pipes: Mapping[str, float],
        *,
        up: float = math.inf,
        down: float = math.inf,
        depth_s: float = 0.2,
        seed: int = 0,
    ) -> None:
        hosts = sorted({n for pair in ways for n in pair})
        self.arrived: Arrivals = []
        self.now = 0.0
        self.shaper = Shaper(
            self._deliver,
            up=dict.fromkeys(hosts, up),
            down=dict.fromkeys(hosts, down),
            ways=ways,
            pipes=pipes,
            depth_s=depth_s,
            seed=seed,
        )

    def _deliver(self, target: int, packet: object) -> None:
        self.arrived.append((self.now, target, packet))

    def run(self, until: float = math.inf) -> Arrivals:
        while (when := self.shaper.agenda.next_time()) <= until and when < math.inf:
            self.now = when
            self.shaper.agenda.advance(when)
        self.now = max(self.now, until if until < math.inf else 0.0)
        return self.arrived

    def offer(self, when: float, src: int, dst: int, packet: object, size: int, flow: object = "flow") -> None:
        self.run(when)
        self.shaper.offer(when, src, dst, flow, packet, size)


def line(rate: float, latency: float, **rest: Any) -> tuple[dict[tuple[int, int], Way], dict[str, float]]:
    return {(0, 1): Way("pipe", latency, **rest)}, {"pipe": rate}


@given(
    rate=st.floats(1e5, 1e9),
    latency=st.floats(0, 0.2),
    sizes=st.lists(st.integers(40, 65_000), min_size=1, max_size=30),
)
def test_a_saturated_link_sends_at_its_rate_and_a_packet_takes_its_length_once(
    rate: float, latency: float, sizes: list[int]
) -> None:
    """Uplink, pipe and downlink of the same rate: the k-th packet arrives when k packets have left, plus latency."""
    ways, pipes = line(rate, latency)
    bench = Bench(ways, pipes, up=rate, down=rate, depth_s=1e9)
    for number, size in enumerate(sizes):
        bench.offer(0.0, 0, 1, number, size)
    arrived = bench.run()
    assert [packet for _, _, packet in arrived] == list(range(len(sizes)))
    for number, (when, target, _) in enumerate(arrived):
        assert target == 1
        assert when == pytest.approx(sum(sizes[: number + 1]) / rate + latency, rel=1e-9)


@given(st.permutations([1e6, 3e6, 9e6]))
def test_the_slowest_of_uplink_pipe_and_downlink_sets_the_rate(rates: list[float]) -> None:
    up, pipe, down = rates
    ways, pipes = line(pipe, 0.01)
    bench = Bench(ways, pipes, up=up, down=down, depth_s=1e9)
    for number in range(100):
        bench.offer(0.0, 0, 1, number, 1000)
    arrived = bench.run()
    assert arrived[-1][0] == pytest.approx(100 * 1000 / 1e6 + 0.01, rel=1e-6)
    assert arrived[0][0] == pytest.approx(1000 / 1e6 + 0.01, rel=1e-6)


def test_a_late_caller_loses_no_rate() -> None:
    """The clock is read only every 10 ms, as on a busy machine: the last packet is late by that, not by more."""
    ways, pipes = line(1e6, 0.0)
    bench = Bench(ways, pipes, depth_s=1e9)
    for number in range(1000):
        bench.offer(0.0, 0, 1, number, 1000)
    for tick in range(1, 102):
        bench.now = tick * 0.01
        bench.shaper.agenda.advance(bench.now)
    assert len(bench.arrived) == 1000
    assert bench.arrived[-1][0] <= 1.0 + 0.0101


@pytest.mark.parametrize("sizes", [(1500, 1500), (9000, 300), (60_000, 1500)])
def test_two_flows_on_one_uplink_share_it_fairly(sizes: tuple[int, int]) -> None:
    """Both always have something to send, one in large and one in small packets, to different hosts."""
    ways = {(0, 1): Way("a", 0.01), (0, 2): Way("b", 0.05)}
    bench = Bench(ways, {"a": 1e9, "b": 1e9}, up=1e6, depth_s=0.5)
    sent = [0.0, 0.0]
    for k in range(20_000):
        when = k * 1e-3
        for flow, size in enumerate(sizes):
            while sent[flow] <= when:  # each offers the full rate
                bench.offer(when, 0, 1 + flow, size, size, flow)
                sent[flow] += size / 1e6
    arrived = bench.run(20.0)
    got = [sum(size for when, target, size in arrived if target == 1 + flow and when > 1.0) for flow in (0, 1)]  # type: ignore[misc]
    assert sum(got) == pytest.approx(19e6, rel=0.02)
    assert got[0] == pytest.approx(got[1], rel=0.02)


def test_a_polite_flow_is_not_dropped_for_a_greedy_one() -> None:
    ways = {(0, 1): Way("a", 0.01), (0, 2): Way("b", 0.01)}
    bench = Bench(ways, {"a": 1e9, "b": 1e9}, up=1e6)
    for k in range(5000):
        bench.offer(k * 1e-3, 0, 1, "greedy", 3000, "greedy")
        if k % 10 == 0:
            bench.offer(k * 1e-3, 0, 2, "polite", 1000, "polite")
    arrived = bench.run()
    assert sum(packet == "polite" for _, _, packet in arrived) == 500
    assert bench.shaper.up[0].count.dropped > 0


def test_a_queue_has_the_depth_it_is_told_and_drops_the_rest() -> None:
    ways, pipes = line(1e6, 0.0)
    bench = Bench(ways, pipes, depth_s=0.1)
    for number in range(1000):
        bench.offer(0.0, 0, 1, number, 1000)
    arrived = bench.run()
    assert len(arrived) == 101  # 0.1 s at 1 MB/s, and the packet that is being sent
    assert bench.shaper.pipes["pipe"].count.dropped == 899


def test_ways_with_one_pipe_share_it() -> None:
    ways = {(0, 2): Way("shared", 0.0), (1, 2): Way("shared", 0.0), (2, 0): Way("back", 0.0)}
    bench = Bench(ways, {"shared": 1e6, "back": 1e6}, depth_s=1e9)
    for number in range(50):
        bench.offer(0.0, 0, 2, number, 1000, "a")
        bench.offer(0.0, 1, 2, number, 1000, "b")
        bench.offer(0.0, 2, 0, number, 1000, "c")
    arrived = bench.run()
    assert max(when for when, target, _ in arrived if target == 2) == pytest.approx(0.1)
    assert max(when for when, target, _ in arrived if target == 0) == pytest.approx(0.05)


@pytest.mark.parametrize(("latency", "jitter"), [(0.02, 0.002), (0.05, 0.03), (0.001, 0.002)])
@pytest.mark.parametrize("seed", [0, 1])
def test_delays_have_the_mean_and_the_deviation_they_are_told(latency: float, jitter: float, seed: int) -> None:
    ways, pipes = line(1e12, latency, jitter_s=jitter)
    bench = Bench(ways, pipes, seed=seed)
    gap = 0.35  # so far apart that the order of packets restrains nobody, and that most delays are independent
    for number in range(4000):
        bench.offer(number * gap, 0, 1, number, 100)
    delays = [when - number * gap for number, (when, _, _) in enumerate(bench.run())]
    assert statistics.mean(delays) == pytest.approx(latency, abs=5 * jitter / math.sqrt(4000))
    assert statistics.stdev(delays) == pytest.approx(jitter, rel=0.25)  # the heavy tail of jitter > latency
    assert min(delays) > 0


@pytest.mark.parametrize("seed", [0, 1])
def test_the_order_of_packets_does_not_bend_the_delays(seed: int) -> None:
    """Packets follow one another much faster than the delay's deviation: still nobody waits for the one before."""
    latency, jitter, gap = 0.1, 0.01, 1e-3
    ways, pipes = line(1e12, latency, jitter_s=jitter)
    bench = Bench(ways, pipes, seed=seed)
    for number in range(40_000):  # 400 correlation times
        bench.offer(number * gap, 0, 1, number, 100)
    delays = [when - number * gap for number, (when, _, _) in enumerate(bench.run())]
    assert statistics.mean(delays) == pytest.approx(latency, abs=4 * jitter / math.sqrt(400))
    assert statistics.stdev(delays) == pytest.approx(jitter, rel=0.15)


@given(st.lists(st.floats(0, 1e-3), min_size=2, max_size=200), st.integers(0, 9))
def test_jitter_never_lets_a_packet_overtake(gaps: list[float], seed: int) -> None:
    ways, pipes = line(1e9, 0.01, jitter_s=0.01)
    bench = Bench(ways, pipes, seed=seed)
    now = 0.0
    for number, gap in enumerate(gaps):
        now += gap
        bench.offer(now, 0, 1, number, 100)
    assert [packet for _, _, packet in bench.run()] == list(range(len(gaps)))


@pytest.mark.parametrize("loss", [0.001, 0.05, 0.5])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_losses_lie_in_their_binomial_interval(loss: float, seed: int) -> None:
    ways, pipes = line(1e9, 0.0, loss=loss)
    bench = Bench(ways, pipes, seed=seed)
    n = 20_000
    for number in range(n):
        bench.offer(number * 1e-3, 0, 1, number, 100)
    lost = n - len(bench.run())
    assert abs(lost - n * loss) <= 4 * math.sqrt(n * loss * (1 - loss))
    assert bench.shaper.lost == lost


def test_a_cut_way_is_dead_at_once_and_heals() -> None:
    """What is under way is lost too; the way back is not touched."""
    ways = {(0, 1): Way("there", 0.1), (1, 0): Way("back", 0.1)}
    bench = Bench(ways, {"there": 1e6, "back": 1e6})
    bench.offer(0.0, 0, 1, "before", 1000)
    bench.offer(0.15, 0, 1, "under way", 1000)
    bench.run(0.2)
    bench.shaper.ways[0, 1].up = False
    bench.offer(0.21, 0, 1, "cut", 1000)
    bench.offer(0.21, 1, 0, "other way", 1000)
    bench.run(0.5)
    bench.shaper.ways[0, 1].up = True
    bench.offer(0.6, 0, 1, "healed", 1000)
    assert [packet for _, _, packet in bench.run()] == ["before", "other way", "healed"]
    assert bench.shaper.lost == 2


def test_rates_can_change_while_packets_wait() -> None:
    ways, pipes = line(1e6, 0.0)
    bench = Bench(ways, pipes, depth_s=1e9)
    for number in range(20):
        bench.offer(0.0, 0, 1, number, 1000)
    bench.run(0.0095)  # the tenth is being sent
    bench.shaper.pipes["pipe"].rate = 1e5
    assert bench.run()[-1][0] == pytest.approx(0.010 + 10 * 0.01)


def packets(arrived: Iterable[tuple[float, int, object]]) -> list[object]:
    return [packet for _, _, packet in arrived]


def test_a_way_that_does_not_exist_carries_nothing() -> None:
    ways, pipes = line(1e6, 0.0)
    bench = Bench(ways, pipes)
    bench.offer(0.0, 1, 0, "nowhere", 100)
    assert packets(bench.run()) == [] and bench.shaper.lost == 1
