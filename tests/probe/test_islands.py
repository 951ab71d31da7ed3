"""Islands of made matrices, with 20 % of noise; the truth is how they were made."""

from __future__ import annotations

from random import Random

import pytest

from shoal.probe import find_islands


def made(islands: list[int], ratio: float, *, seed: int) -> tuple[list[str], dict[tuple[str, str], float]]:
    """Hosts ``h00``… in islands of these sizes: 1 between them, `ratio` inside, each ±20 % and direction by itself."""
    random = Random(seed)
    island = [k for k, size in enumerate(islands) for _ in range(size)]
    hosts = [f"h{i:02d}" for i in range(len(island))]
    bandwidth = {
        (a, b): (ratio if island[i] == island[j] else 1.0) * random.uniform(0.8, 1.2)
        for i, a in enumerate(hosts)
        for j, b in enumerate(hosts)
        if i != j
    }
    return hosts, bandwidth


def sizes(found: list[list[str]]) -> list[int]:
    return [len(part) for part in found]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("ratio", [1250.0, 10.0, 2.0])
@pytest.mark.parametrize("islands", [[4, 4, 4], [2, 2, 2], [8, 3], [2, 1], [8, 1, 1, 1], [12, 3, 3, 1, 1]])
def test_islands_are_found(islands: list[int], ratio: float, seed: int) -> None:
    hosts, bandwidth = made(islands, ratio, seed=seed)
    found = find_islands(hosts, bandwidth)
    assert [host for part in found for host in part] == hosts and sizes(found) == islands


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("n", [1, 2, 3, 8, 20])
def test_where_all_is_alike_there_is_one_island(n: int, seed: int) -> None:
    hosts, bandwidth = made([n], 1.0, seed=seed)
    assert find_islands(hosts, bandwidth) == [hosts]


def test_the_slower_direction_counts() -> None:
    hosts, bandwidth = made([3, 3], 100.0, seed=0)
    for host in hosts[:2] + hosts[3:]:
        bandwidth["h02", host] = 1.0  # it hears well and says little: a home connection
    assert find_islands(hosts, bandwidth) == [["h00", "h01"], ["h02"], ["h03", "h04", "h05"]]


def test_islands_of_unequal_speed() -> None:
    """A 10 Gbit/s cluster, a 1 Gbit/s office and a slow home, 50 Mbit/s apart."""
    speed = {"c": 1250e6, "o": 125e6}
    hosts = ["c0", "c1", "c2", "o0", "o1", "x0"]
    bandwidth = {(a, b): speed[a[0]] if a[0] == b[0] else 6e6 for a in hosts for b in hosts if a != b}
    assert find_islands(hosts, bandwidth) == [["c0", "c1", "c2"], ["o0", "o1"], ["x0"]]
