"""The fluid network: sharing, times, and that recomputing only what changed gives what recomputing everything would."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from network.test_maxmin import reference
from shoal.cluster import Cluster, Link
from shoal.network import FluidNetwork
from worlds.clusters import flat

MEGABYTE = 1e6


def ends(network: FluidNetwork) -> dict[int, float]:
    """Runs until nothing flows; flow → when it ended."""
    out: dict[int, float] = {}
    while (at := network.next_completion()) < math.inf:
        out.update(dict.fromkeys(network.advance(at), at))
    return out


def shared_pipe(cluster: Cluster, bandwidth: float, pairs: list[tuple[str, str]]) -> Cluster:
    """The same cluster, with one pipe of `bandwidth` that these pairs of hosts share."""
    links = dict(cluster.links)
    for pair in pairs:
        links[pair] = Link(latency_s=links[pair].latency_s, bandwidth_bytes_per_s=bandwidth, pipe="shared")
    return Cluster(name="test", devices=cluster.devices, hosts=cluster.hosts, islands=cluster.islands, links=links)


def test_one_flow_takes_bytes_over_bandwidth() -> None:
    network = FluidNetwork(flat(2, bandwidth=2 * MEGABYTE, latency=0.5))
    network.start(1, "p0000", "p0001", MEGABYTE, 3.0)
    assert network.next_completion() == 3.5
    assert network.latency("p0000", "p0001") == 0.5
    assert network.advance(3.5) == [1]
    assert len(network) == 0


def test_two_flows_on_one_link_get_half_each_and_the_rest_when_one_ends() -> None:
    network = FluidNetwork(flat(2))
    network.start(1, "p0000", "p0001", MEGABYTE, 0.0)
    network.start(2, "p0000", "p0001", 2 * MEGABYTE, 0.0)
    assert network.rates() == {1: 0.5 * MEGABYTE, 2: 0.5 * MEGABYTE}
    assert ends(network) == {1: 2.0, 2: 3.0}


def test_a_later_flow_slows_an_earlier_one() -> None:
    network = FluidNetwork(flat(2))
    network.start(1, "p0000", "p0001", MEGABYTE, 0.0)
    assert network.advance(0.5) == []
    network.start(2, "p0000", "p0001", MEGABYTE, 0.5)
    assert ends(network) == {1: 1.5, 2: 2.0}


def test_directions_do_not_share() -> None:
    network = FluidNetwork(flat(2))
    network.start(1, "p0000", "p0001", MEGABYTE, 0.0)
    network.start(2, "p0001", "p0000", MEGABYTE, 0.0)
    assert ends(network) == {1: 1.0, 2: 1.0}


def test_a_host_shares_its_uplink_among_all_it_sends_to() -> None:
    network = FluidNetwork(flat(4, up=1.5 * MEGABYTE))
    for flow in (1, 2, 3):
        network.start(flow, "p0000", f"p000{flow}", MEGABYTE, 0.0)
    assert set(network.rates().values()) == {0.5 * MEGABYTE}


def test_a_host_shares_its_downlink_among_all_that_send_to_it() -> None:
    network = FluidNetwork(flat(4, down=1.5 * MEGABYTE))
    for flow in (1, 2, 3):
        network.start(flow, f"p000{flow}", "p0000", MEGABYTE, 0.0)
    assert set(network.rates().values()) == {0.5 * MEGABYTE}


def test_links_with_the_same_pipe_share_it() -> None:
    cluster = shared_pipe(flat(4), MEGABYTE, [("h0000", "h0001"), ("h0002", "h0003")])
    network = FluidNetwork(cluster)
    network.start(1, "p0000", "p0001", MEGABYTE, 0.0)
    network.start(2, "p0002", "p0003", MEGABYTE, 0.0)
    network.start(3, "p0002", "p0001", MEGABYTE, 0.0)
    assert network.rates() == {1: 0.5 * MEGABYTE, 2: 0.5 * MEGABYTE, 3: MEGABYTE}


def test_devices_of_a_host_use_its_own_link_and_not_its_uplink() -> None:
    network = FluidNetwork(flat(3, hosts=[0, 0, 1], up=0.25 * MEGABYTE, link=lambda a, b: (0.0, MEGABYTE)))
    network.start(1, "p0000", "p0001", MEGABYTE, 0.0)
    network.start(2, "p0000", "p0002", MEGABYTE, 0.0)
    network.start(3, "p0001", "p0002", MEGABYTE, 0.0)
    assert network.rates() == {1: MEGABYTE, 2: 0.125 * MEGABYTE, 3: 0.125 * MEGABYTE}


def test_empty_flows_and_infinite_links_take_no_time() -> None:
    network = FluidNetwork(flat(2))
    network.start(1, "p0000", "p0001", 0, 2.0)
    network.start(2, "p0000", "p0001", MEGABYTE, 2.0)
    assert network.advance(2.0) == [1]
    assert ends(network) == {2: 3.0}
    network = FluidNetwork(flat(2, bandwidth=math.inf))
    network.start(1, "p0000", "p0001", MEGABYTE, 2.0)
    assert ends(network) == {1: 2.0}


def test_a_cancelled_flow_frees_its_share() -> None:
    network = FluidNetwork(flat(2))
    network.start(1, "p0000", "p0001", MEGABYTE, 0.0)
    network.start(2, "p0000", "p0001", MEGABYTE, 0.0)
    assert network.advance(0.5) == []
    network.cancel([2, 77], 0.5)
    assert ends(network) == {1: 1.25}


def test_advancing_over_several_completions_changes_rates_in_between() -> None:
    network = FluidNetwork(flat(2))
    for flow, size in ((1, 1.0), (2, 2.0), (3, 3.0)):
        network.start(flow, "p0000", "p0001", size * MEGABYTE, 0.0)
    assert network.advance(5.5) == [1, 2]
    assert network.next_completion() == 6.0


def test_flows_that_end_together_are_named_in_order() -> None:
    network = FluidNetwork(flat(6))
    for flow, (src, dst) in {9: (0, 1), 4: (2, 3), 7: (4, 5)}.items():
        network.start(flow, f"p000{src}", f"p000{dst}", MEGABYTE, 0.0)
    assert network.advance(1.0) == [4, 7, 9]


def test_changing_flows_without_advancing_first_is_refused() -> None:
    network = FluidNetwork(flat(2))
    network.start(1, "p0000", "p0001", MEGABYTE, 0.0)
    with pytest.raises(ValueError, match="advance"):
        network.start(2, "p0000", "p0001", MEGABYTE, 1.5)


def test_large_clock_values_do_not_stop_time() -> None:
    network = FluidNetwork(flat(2, bandwidth=1e12))
    start = 1e9
    network.start(1, "p0000", "p0001", 1.0, start)
    assert network.next_completion() >= start
    assert ends(network).keys() == {1}


def test_slower_is_never_faster() -> None:
    """Case H4: halving one link makes its flows later and others' not earlier where nothing is shared."""
    times = []
    for bandwidth in (MEGABYTE, 0.5 * MEGABYTE):
        network = FluidNetwork(flat(3, link=lambda a, b, bw=bandwidth: (0.0, bw if (a, b) == (0, 1) else MEGABYTE)))
        network.start(1, "p0000", "p0001", MEGABYTE, 0.0)
        network.start(2, "p0001", "p0002", MEGABYTE, 0.0)
        times.append(ends(network))
    assert times == [{1: 1.0, 2: 1.0}, {1: 2.0, 2: 1.0}]


@dataclass
class Naive:
    """Every flow on its own, every rate from scratch at every event: the same model without any of its short cuts."""

    network: FluidNetwork
    left: dict[int, float]
    now: float = 0.0

    def rates(self) -> dict[int, float]:
        crossing = self.network.crossing()
        names = list(crossing)
        flows = sorted(self.left)
        ways = [{r for r, name in enumerate(names) if flow in crossing[name][1]} for flow in flows]
        rates = reference([crossing[name][0] for name in names], ways, [math.inf] * len(flows))
        return dict(zip(flows, rates, strict=True))


def random_cluster(draw: random.Random) -> Cluster:
    hosts = [draw.randrange(4) for _ in range(6)]
    sizes = [0.5e6, 1e6, 1.5e6, 4e6]
    ways = {(a, b): (0.0, draw.choice(sizes)) for a in range(4) for b in range(4)}
    cluster = flat(
        6, hosts=hosts, link=lambda a, b: ways[a, b], up=draw.choice([*sizes, math.inf]), down=draw.choice(sizes)
    )
    names = sorted(cluster.hosts)
    pairs = [(a, b) for a in names for b in names if a != b]
    return shared_pipe(cluster, draw.choice(sizes), draw.sample(pairs, len(pairs) // 3)) if pairs else cluster


@given(st.integers(0, 10**6))
def test_what_is_recomputed_is_what_everything_anew_would_be(seed: int) -> None:
    """Random starts, cancellations and ends; after each, rates equal the reference and every byte is accounted for."""
    draw = random.Random(seed)
    cluster = random_cluster(draw)
    network, naive = FluidNetwork(cluster), Naive(FluidNetwork(cluster), {})
    naive.network = network
    now, sent = 0.0, dict[int, float]()
    for flow in range(25):
        now += draw.choice([0.0, 0.1, 0.7])
        while (at := network.next_completion()) <= now:
            rates = network.rates()
            for running, rate in rates.items():
                sent[running] += rate * (at - naive.now)
            naive.now = at
            for ended in network.advance(at):
                assert sent[ended] == pytest.approx(naive.left.pop(ended), rel=1e-9, abs=1e-3)
        for running, rate in network.rates().items():
            sent[running] += rate * (now - naive.now)
        naive.now = now
        if naive.left and draw.random() < 0.2:
            victim = draw.choice(sorted(naive.left))
            network.cancel([victim], now)
            del naive.left[victim]
        else:
            src, dst = draw.sample(cluster.peers, 2)
            size = draw.choice([1e5, 1e6, 1e6, 3e6])
            network.start(flow, src, dst, size, now)
            naive.left[flow], sent[flow] = size, 0.0
        assert network.rates() == pytest.approx(naive.rates(), rel=1e-6)


@given(st.integers(0, 10**6))
def test_equal_inputs_give_equal_times_to_the_bit(seed: int) -> None:
    def play() -> list[tuple[float, list[int]]]:
        draw = random.Random(seed)
        cluster = random_cluster(draw)
        network, out = FluidNetwork(cluster), []
        for flow in range(20):
            src, dst = draw.sample(cluster.peers, 2)
            network.start(flow, src, dst, draw.choice([1e5, 1e6]), 0.0)
        while (at := network.next_completion()) < math.inf:
            out.append((at, network.advance(at)))
        return out

    assert play() == play()
