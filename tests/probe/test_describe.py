from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import pytest

from probe.virtual import made_survey, survey_in_virtual_time
from shoal import cluster as clusters
from shoal.cluster import Links
from shoal.probe import Survey, as_text, find_islands, to_cluster
from worlds.clusters import flat

HOSTS = {"a0": 1, "a1": 2, "b0": 1, "b1": 1, "c0": 1}


def survey() -> Survey:
    """Two islands of two at 1 Gbit/s, and a lone host; 100 Mbit/s from a to b, 20 back, 5 otherwise."""
    between = {("a", "b"): 12.5e6, ("b", "a"): 2.5e6}
    speed = {(x, y): 125e6 if x[0] == y[0] else between.get((x[0], y[0]), 6e5) for x, y in permutations(HOSTS, 2)}
    return made_survey(HOSTS, {**speed, ("a1", "a1"): 2e9})


def test_the_text_loads_back_to_the_very_cluster_and_says_how_sure_it_is() -> None:
    found = survey()
    cluster = to_cluster(found)
    text = as_text(cluster, found, when="2031-05-06")
    assert clusters.parse(text) == cluster
    assert text.startswith("# Measured by shoal probe on 2031-05-06: 6 devices on 5 hosts")
    lines = text.splitlines()
    for header in ("[[device]]", "[[link]]"):
        above = [lines[n - 1] for n, line in enumerate(lines) if line == header]
        assert above and all("±" in line for line in above)
    assert "# Measured on 1 of 5 hosts." in lines


def test_islands_have_rules_and_equal_pairs_have_none() -> None:
    links = to_cluster(survey()).links
    assert isinstance(links, Links)
    assert set(links.island.values()) == {"island-0", "island-1", "island-2"}
    assert set(links.within_island) == {"island-0", "island-1"}
    assert set(links.rules) == set(permutations(["island-0", "island-1", "island-2"], 2))
    assert links["a0", "b1"].bandwidth_bytes_per_s == 12.5e6 and links["b1", "a0"].bandwidth_bytes_per_s == 2.5e6
    assert links.within_host.bandwidth_bytes_per_s == 2e9


def test_a_pair_that_clearly_differs_gets_its_own_rule() -> None:
    found = survey()
    odd = replace(found.ways["a0", "b1"], bandwidth=replace(found.ways["a0", "b1"].bandwidth, value=9e6))
    near = replace(found.ways["a1", "b0"], bandwidth=replace(found.ways["a1", "b0"].bandwidth, value=12e6))
    found = replace(found, ways={**found.ways, ("a0", "b1"): odd, ("a1", "b0"): near})
    cluster = to_cluster(found)
    assert isinstance(cluster.links, Links)
    single = [pair for pair in cluster.links.rules if pair[0] in HOSTS]
    assert single == [("a0", "b1")] and cluster.links["a0", "b1"].bandwidth_bytes_per_s == 9e6
    assert clusters.parse(as_text(cluster, found, when="now")) == cluster


def test_jitter_is_said_where_it_stands_out() -> None:
    found = survey()
    shaky = {pair: replace(way, jitter_s=0.004) for pair, way in found.ways.items()}
    cluster = to_cluster(replace(found, ways=shaky))
    assert cluster.links["a0", "b0"].jitter_s == 0.004
    assert to_cluster(found).links["a0", "b0"].jitter_s == 0.0


def test_the_speed_is_that_of_the_precision_that_was_asked_for() -> None:
    assert to_cluster(survey()).device("a0-0").flops == 1e11
    assert to_cluster(survey(), precision="bfloat16").device("a0-0").flops == 2e11


@pytest.mark.parametrize("seed", range(3))
def test_from_a_cluster_through_a_survey_back_to_it(seed: int) -> None:
    """Every link and device of the written file is within the 10 % that separate rules, and rounding, allow."""
    cluster = flat(6, link=lambda a, b: (1e-4, 1e8) if a // 2 == b // 2 else (0.01 + 0.003 * (a + b), 1e6 * (1 + b)))
    found, _ = survey_in_virtual_time(cluster)
    written = clusters.parse(as_text(to_cluster(found), found, when="now"))
    for (a, b), link in cluster.links.items():
        if a != b:
            assert written.links[a, b].bandwidth_bytes_per_s == pytest.approx(link.bandwidth_bytes_per_s, rel=0.11)
            assert written.links[a, b].latency_s == pytest.approx(link.latency_s, rel=0.11, abs=2.1e-4)
    speeds = {pair: way.bandwidth.value for pair, way in found.ways.items()}
    assert find_islands(list(cluster.hosts), speeds)[0] == ["h0000", "h0001"]
    assert [device.flops for device in written.devices] == [device.flops for device in cluster.devices]
