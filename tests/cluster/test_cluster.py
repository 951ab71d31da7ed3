"""The resolved cluster: look-ups, size, and writing it back."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal import cluster
from shoal.cluster import Cluster, Device, Host, Island, Link, Links, Rule, local
from shoal.errors import UserError


def big(islands: int, per_island: int) -> str:
    names = [f"i{n:02d}" for n in range(islands)]
    device = 'speed = "1 TFLOP/s"\nmemory = "8 GiB"'
    return "\n".join(
        [
            'defaults.within_island = { latency = "0.2 ms", bandwidth = "10 Gbps" }',
            'defaults.between_islands = { latency = "30 ms", bandwidth = "100 Mbps" }',
            f"island = [{', '.join(f'{{ name = {name!r} }}' for name in names)}]",
            *(f'[[device]]\nname = "{name}"\nisland = "{name}"\ncount = {per_island}\n{device}' for name in names),
        ]
    )


rates = st.integers(1, 10**12).map(lambda eighths: eighths / 8)
rules = st.builds(
    Rule,
    latency_s=st.floats(0, 10, allow_subnormal=False),
    bandwidth_bytes_per_s=rates,
    shared=st.booleans(),
    price_per_byte=st.sampled_from([0.0, 0.09e-9, 1e-10 / 3]),
    loss=st.floats(0, 0.99, allow_subnormal=False),
)


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    """Clusters of any shape in which every pair of hosts has a link."""
    islands = [f"i{n}" for n in range(draw(st.integers(1, 3)))]
    hosts = {f"{island}-h{n}": island for island in islands for n in range(draw(st.integers(1, 3)))}
    inside = st.builds(Rule, latency_s=st.floats(0, 1, allow_subnormal=False), bandwidth_bytes_per_s=rates)
    pairs = [(a, b) for a in hosts for b in hosts if a != b] + [(a, b) for a in islands for b in islands if a != b]
    return Cluster(
        name="made",
        devices=tuple(
            Device(
                name=f"{host}-d{n}",
                host=host,
                kind=draw(st.sampled_from(["cpu", "cuda"])),
                flops=draw(rates),
                memory_bytes=float(draw(st.integers(1, 10**12))),
                memory_bandwidth_bytes_per_s=draw(rates),
            )
            for host in hosts
            for n in range(draw(st.integers(1, 2)))
        ),
        hosts={
            host: Host(
                name=host,
                island=island,
                up_bytes_per_s=draw(rates),
                down_bytes_per_s=draw(rates),
                memory_bytes=float(draw(st.integers(1, 10**12))),
                price_per_hour=draw(st.floats(0, 100, allow_subnormal=False)),
            )
            for host, island in hosts.items()
        },
        islands={island: Island(name=island, number=n) for n, island in enumerate(islands)},
        links=Links(
            island=hosts,
            within_host=draw(inside),
            within_island={island: draw(inside) for island in islands},
            between=draw(rules),
            rules=draw(st.dictionaries(st.sampled_from(pairs), rules, max_size=4)) if pairs else {},
        ),
    )


@settings(deadline=None)
@given(clusters())
def test_a_written_cluster_loads_back_equal(made: Cluster) -> None:
    loaded = cluster.parse(cluster.dump(made))
    assert loaded == made
    assert all(loaded.link(a, b) == made.link(a, b) for a in made.peers for b in made.peers if a != b)


@settings(deadline=None)
@given(clusters())
def test_the_matrix_shows_the_link_of_every_pair_of_hosts(made: Cluster) -> None:
    """Case B4: the full matrix is printed."""
    lines = cluster.matrix_text(made).splitlines()
    table = [line for line in lines if line[:1] not in "*~"]
    assert all(any(line.startswith(host) or "hosts)" in line or "…" in line for line in table) for host in made.hosts)
    assert len(table) <= 1 + len(made.hosts)


def test_the_matrix_of_two_cities() -> None:
    """Case B4: each direction, what is shared, and what is only a default."""
    text = (
        cluster.template()
        .replace("[[link]]", "[[link]]\none_way = true", 1)
        .replace('back_bandwidth = "20 Mbps"\n', "")
    )
    text = f'{text}\n[defaults.between_islands]\nlatency = "60 ms"\nbandwidth = "5 Mbps"\n'
    assert cluster.matrix_text(cluster.parse(text)).splitlines() == [
        "from \\ to       server          bern (2 hosts)    up        down",
        "server          80 Gbps 10 us   100 Mbps 20 ms *  100 Mbps  5 Mbps",
        "bern (2 hosts)  5 Mbps 60 ms ~  1 Gbps 200 us     1 Gbps    1 Gbps",
        "* one pipe, shared by all pairs of hosts",
        "~ the default between islands",
    ]


def test_unequal_hosts_of_an_island_have_rows_of_their_own() -> None:
    made = local(4, islands=1)
    assert cluster.matrix_text(made).splitlines() == [
        "from \\ to  host           up      down",
        "host       8 Gbps 100 us  8 Gbps  8 Gbps",
    ]
    made = cluster.parse(big(1, 3))
    slow = replace(made.hosts["i00-1"], up_bytes_per_s=1e6)
    rows = cluster.matrix_text(replace(made, hosts={**made.hosts, "i00-1": slow})).splitlines()
    assert [row.split("  ")[0] for row in rows[1:]] == ["i00-0 … i00-2", "i00-1"]


def test_a_thousand_devices_are_looked_up_without_a_table_of_pairs() -> None:
    found = cluster.parse(big(32, 32))
    assert len(found.peers) == 1024 and isinstance(found.links, Links)
    assert found.links.rules == {} and len(found.links.within_island) == 32
    assert found.link("i00-00", "i31-31").pipe == "i00-00>i31-31"
    assert len(cluster.matrix_text(found).splitlines()) == 34


def test_links_are_a_mapping_over_all_pairs() -> None:
    links = local(3, islands=3).links
    assert len(links) == 9 and set(links) == {(a, b) for a in links_hosts(links) for b in links_hosts(links)}
    assert links["host-0", "host-1"] == links.get(("host-0", "host-1"))


def links_hosts(links: object) -> list[str]:
    assert isinstance(links, Links)
    return list(links.island)


def test_a_pair_without_a_rule_is_not_in_the_mapping() -> None:
    rule = Rule(latency_s=0.0, bandwidth_bytes_per_s=1.0)
    links = Links(island={"a": "x", "b": "y"}, within_host=rule, rules={("a", "b"): rule})
    assert ("a", "b") in links and ("b", "a") not in links and len(links) == 3
    with pytest.raises(KeyError):
        links["b", "a"]


def test_a_device_has_no_link_to_itself() -> None:
    with pytest.raises(ValueError, match="no link to itself"):
        local(2).link("worker-0", "worker-0")


def test_an_unknown_device_is_refused_with_the_nearest() -> None:
    with pytest.raises(UserError, match="no such device, got 'worker-9'; did you mean"):
        local(2).device("worker-9")
    with pytest.raises(UserError, match="no such device"):
        local(2).link("worker-0", "x")


def test_devices_are_sorted_and_unique() -> None:
    made = local(3)
    shuffled = replace(made, devices=made.devices[::-1])
    assert shuffled == made and shuffled.peers == ("worker-0", "worker-1", "worker-2")
    with pytest.raises(ValueError, match="same name"):
        replace(made, devices=(*made.devices, made.devices[0]))


def test_a_cluster_can_be_sent_to_another_process() -> None:
    made = cluster.parse(cluster.template())
    back = pickle.loads(pickle.dumps(made))
    assert back == made and back.link("gpu-0", "pc-1") == made.link("gpu-0", "pc-1")


def test_a_cluster_put_together_from_single_links_cannot_be_written() -> None:
    made = local(2)
    plain = {pair: Link(latency_s=0.0, bandwidth_bytes_per_s=1.0, pipe="p") for pair in made.links}
    by_hand = replace(made, links=plain)
    assert by_hand.link("worker-0", "worker-1").pipe == "p"
    assert cluster.matrix_text(by_hand)
    with pytest.raises(TypeError, match="Links"):
        cluster.dump(by_hand)


@pytest.mark.parametrize(("count", "islands"), [(1, 1), (4, 2), (5, 3), (12, 12), (100, 7)])
def test_local_workers_are_equal_and_spread_over_islands(count: int, islands: int) -> None:
    made = local(count, islands=islands)
    assert len(made.peers) == count and made.peers == tuple(sorted(made.peers))
    sizes = [sum(made.island_of(peer) == n for peer in made.peers) for n in range(islands)]
    assert sum(sizes) == count and max(sizes) - min(sizes) <= 1
    assert [made.island_of(peer) for peer in made.peers] == sorted(made.island_of(peer) for peer in made.peers)
    assert len({(device.kind, device.flops, device.memory_bytes) for device in made.devices}) == 1
    assert cluster.parse(cluster.dump(made)) == made


@pytest.mark.parametrize(("count", "islands"), [(0, 1), (-1, 1), (2, 0), (2, 3)])
def test_impossible_local_clusters_are_refused(count: int, islands: int) -> None:
    with pytest.raises(UserError):
        local(count, islands=islands)
