"""In virtual time a survey must find what the cluster says: the oracle is the cluster, not the measuring code."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probe.virtual import survey_in_virtual_time
from shoal import cluster as clusters
from shoal.cluster import Cluster
from shoal.errors import UserError
from shoal.probe import About, Progress, Settings, Survey
from shoal.probe.places import arrange
from shoal.worlds.faults import Jitter
from worlds.clusters import flat


def random_cluster(seed: int, n: int) -> Cluster:
    """n hosts with links of their own in each direction, the last host a very slow lone one; unequal devices."""
    random = Random(seed)
    links = {}
    for a in range(n):
        for b in range(n):
            slow = n - 1 in (a, b) and n > 2
            bandwidth = random.uniform(2e4, 1e5) if slow else 10 ** random.uniform(5.5, 8.1)
            links[a, b] = (random.uniform(1e-4, 5e-2), bandwidth)
    speed = {i: 10 ** random.uniform(-2, 3) for i in range(n)}
    return flat(n, link=lambda a, b: links[a, b], speed=speed, memory_bandwidth=random.uniform(1e9, 1e12))


@settings(max_examples=15)
@given(seed=st.integers(0, 10**6), n=st.integers(1, 5))
def test_a_survey_finds_what_the_cluster_says(seed: int, n: int) -> None:
    cluster = random_cluster(seed, n)
    found, _ = survey_in_virtual_time(cluster)
    hosts = list(cluster.hosts)
    assert set(found.ways) == {(a, b) for a in hosts for b in hosts if a != b}
    for (a, b), way in found.ways.items():
        link, back = cluster.links[a, b], cluster.links[b, a]
        assert way.bandwidth.value == pytest.approx(link.bandwidth_bytes_per_s, rel=0.01)
        assert way.latency_s == pytest.approx((link.latency_s + back.latency_s) / 2, rel=0.01)
        assert way.jitter_s == pytest.approx(0.0, abs=1e-9)
    for name, facts in found.devices.items():
        device = cluster.device(name)
        assert [figure.value for figure in facts.flops.values()] == pytest.approx([device.flops] * 2, rel=1e-3)
        assert facts.memory_bandwidth.value == pytest.approx(device.memory_bandwidth_bytes_per_s, rel=1e-3)
        assert facts.memory_bytes == device.memory_bytes


def test_jittered_computations_are_averaged_and_their_spread_is_told() -> None:
    found, _ = survey_in_virtual_time(flat(3, bandwidth=1e7), jitter=Jitter(kind="normal", spread=0.05, seed=3))
    for facts in found.devices.values():
        speed = facts.flops["float32"]
        assert speed.value == pytest.approx(1e9, rel=0.1)
        assert 0.005 < speed.spread < 0.1


def test_clocks_are_compared_and_the_error_covers_asymmetric_ways() -> None:
    ahead = {"h0000": 5.0, "h0001": 5.25, "h0002": -100.0}
    ways = {(0, 1): (0.01, 1e6), (1, 0): (0.03, 1e6), (0, 2): (0.02, 1e6), (2, 0): (0.02, 1e6)}
    cluster = flat(3, link=lambda a, b: ways.get((a, b), (0.01, 1e6)))
    found, _ = survey_in_virtual_time(cluster, clock_ahead=ahead)
    assert found.leader == "h0000"
    for host, facts in found.hosts.items():
        assert facts.clock_offset_s is not None and facts.clock_error_s is not None
        assert abs(facts.clock_offset_s - (ahead[host] - ahead["h0000"])) <= facts.clock_error_s + 1e-9
    assert found.hosts["h0002"].clock_offset_s == pytest.approx(-105.0, abs=1e-6)  # this way is symmetric


def test_devices_of_one_host_share_its_links_and_what_is_between_them_is_measured() -> None:
    cluster = flat(5, hosts=[0, 0, 0, 1, 1], link=lambda a, b: (1e-5, 1e9) if a == b else (1e-3, 1e7))
    told: list[Progress] = []
    found, _ = survey_in_virtual_time(cluster, told=told)
    assert set(found.ways) == {(a, b) for a in cluster.hosts for b in cluster.hosts}
    assert found.ways["h0000", "h0000"].bandwidth.value == pytest.approx(1e9, rel=0.01)
    assert found.ways["h0001", "h0000"].bandwidth.value == pytest.approx(1e7, rel=0.01)
    assert [progress.done for progress in told] == list(range(1, told[-1].total + 1))


THREE_ISLANDS = """
[[island]]
name = "a"
latency = "0.2 ms"
bandwidth = "1 Gbps"
[[island]]
name = "b"
latency = "0.3 ms"
bandwidth = "500 Mbps"
[[island]]
name = "c"
latency = "0.2 ms"
bandwidth = "1 Gbps"
[[device]]
name = "x"
island = "a"
count = 2
speed = "50 GFLOP/s"
memory = "4 GiB"
[[device]]
name = "y"
island = "b"
count = 2
speed = "50 GFLOP/s"
memory = "4 GiB"
[[device]]
name = "z"
island = "c"
count = 2
speed = "50 GFLOP/s"
memory = "4 GiB"
[[link]]
from = "a"
to = "b"
latency = "50 ms"
bandwidth = "20 Mbps"
shared = true
[[link]]
from = "a"
to = "c"
latency = "20 ms"
bandwidth = "100 Mbps"
back_bandwidth = "50 Mbps"
shared = true
[[link]]
from = "b"
to = "c"
latency = "35 ms"
bandwidth = "40 Mbps"
shared = true
"""


@pytest.mark.parametrize("one_machine", [False, True])
def test_three_islands_with_shared_pipes_are_measured_apart_and_soon(one_machine: bool) -> None:
    """Two pairs that leave one island share its pipe: measured at once, each would be seen at half its rate."""
    cluster = clusters.parse(THREE_ISLANDS)
    physical = dict.fromkeys(cluster.hosts, "lab") if one_machine else None
    found, seconds = survey_in_virtual_time(cluster, physical=physical)
    assert seconds < 120.0
    for (a, b), way in found.ways.items():
        assert way.settled
        assert way.bandwidth.value == pytest.approx(cluster.links[a, b].bandwidth_bytes_per_s, rel=0.02), (a, b)


def test_pairs_that_share_nothing_are_measured_at_once() -> None:
    """15 rounds of 8 pairs take about 15 times as long as one pair, not 120 times."""
    _, pair = survey_in_virtual_time(flat(2, latency=1e-4, bandwidth=1e8))
    _, many = survey_in_virtual_time(flat(16, latency=1e-4, bandwidth=1e8))
    assert many < 16 * pair


def test_bounds_on_bytes_and_time_are_kept_and_said() -> None:
    cluster = flat(2, latency=0.001, bandwidth=1e8)
    found, _ = survey_in_virtual_time(cluster, settings=Settings(nbytes=5e6))
    way = found.ways["h0000", "h0001"]
    assert not way.settled and way.nbytes < 3 * 5e6
    assert way.bandwidth.value == pytest.approx(1e8, rel=0.05)


def test_a_survey_works_with_real_tensors_too() -> None:
    found, _ = survey_in_virtual_time(flat(2, latency=0.001, bandwidth=1e6, flops=1e8), numeric=True)
    assert found.ways["h0000", "h0001"].bandwidth.value == pytest.approx(1e6, rel=0.01)


def test_a_survey_survives_json() -> None:
    found, _ = survey_in_virtual_time(flat(3, hosts=[0, 0, 1]), clock_ahead={"h0001": 1.0})
    assert Survey.from_json(found.to_json()) == found


def about(host: str, machine: str = "", *, named: bool = False) -> About:
    return About(host=host, machine=machine or host, physical=host, named=named, host_memory_bytes=8e9)


def test_two_machines_of_one_name_get_two_and_memory_is_shared_out() -> None:
    abouts = {"p0": about("box", "m1"), "p1": about("box", "m2"), "p2": about("box", "m1"), "p3": about("a b.lan")}
    places = arrange(abouts, {})
    assert places.host == {"p0": "box", "p1": "box-2", "p2": "box", "p3": "a-b"}
    assert places.memory_bytes["p0"] == 4e9 and places.memory_bytes["p1"] == 8e9
    assert places.ends(("box", "box-2")) == ("p0", "p1") and places.ends(("box", "box")) == ("p0", "p2")


def test_a_name_that_a_person_gave_to_two_machines_is_refused() -> None:
    names = {"p0": ("gpu-0", "node"), "p1": ("gpu-1", "node")}
    with pytest.raises(UserError, match="two machines"):
        arrange({"p0": about("x"), "p1": about("y")}, names)
    with pytest.raises(UserError, match="two machines"):
        arrange({"p0": about("x", "m1", named=True), "p1": about("x", "m2", named=True)}, {})


def test_a_person_may_call_one_machine_by_several_names() -> None:
    places = arrange({"p0": about("x"), "p1": about("x")}, {"p0": ("gpu-0", "oslo"), "p1": ("gpu-1", "bern")})
    assert places.host == {"p0": "oslo", "p1": "bern"} and places.device["p1"] == "gpu-1"
