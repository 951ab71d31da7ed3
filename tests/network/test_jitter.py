from __future__ import annotations

import math
import statistics
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal import cluster as clusters
from shoal.network.jitter import jittered
from shoal.world import Tag, World, only_bytes
from shoal.worlds.simulation import Simulation

CLUSTER = """
[defaults.within_island]
latency = "20 ms"
bandwidth = "1 Gbps"
jitter = "{jitter}"
[[device]]
name = "d"
count = 2
speed = "1 GFLOP/s"
memory = "1 GiB"
"""


@pytest.mark.parametrize(("latency", "jitter"), [(0.02, 0.002), (0.05, 0.02), (0.01, 0.01)])
def test_mean_and_deviation_are_what_is_asked_for(latency: float, jitter: float) -> None:
    random = Random(1)
    drawn = [jittered(latency, jitter, random.gauss(0.0, 1.0)) for _ in range(40_000)]
    assert statistics.mean(drawn) == pytest.approx(latency, abs=5 * jitter / math.sqrt(40_000))
    assert statistics.stdev(drawn) == pytest.approx(jitter, rel=0.1)


@given(st.floats(0, 10), st.floats(0, 10), st.floats(-6, 6))
def test_latencies_are_never_negative_and_steady_without_jitter(latency: float, jitter: float, normal: float) -> None:
    assert jittered(latency, jitter, normal) >= 0.0
    assert jittered(latency, 0.0, normal) == latency


async def messages(world: World) -> list[float]:
    """Latencies of 500 empty messages, as the receiver sees them."""
    me, (first, second) = world.me, world.peers
    seen = []
    for n in range(500):
        if me == first:
            await world.sleep(n - world.now())
            await world.send(second, Tag("x", n), only_bytes(0))
        else:
            await world.recv(Tag("x", n), source=first)
            seen.append(world.now() - n)
    return seen


def latencies(jitter: str, network_seed: int) -> list[float]:
    cluster = clusters.parse(CLUSTER.format(jitter=jitter))
    return Simulation(cluster, numeric=False, network_seed=network_seed).run(messages)["d-1"]


def test_messages_in_virtual_time_vary_by_the_links_jitter_and_the_seed() -> None:
    seen = latencies("4 ms", 0)
    assert seen == latencies("4 ms", 0) != latencies("4 ms", 1)
    assert statistics.mean(seen) == pytest.approx(0.02, abs=4 * 0.004 / math.sqrt(500))
    assert statistics.stdev(seen) == pytest.approx(0.004, rel=0.2)
    assert latencies("0 ms", 0) == pytest.approx([0.02] * 500)
