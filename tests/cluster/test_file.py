"""The cluster file: what it means, and that every mistake in it is found and named."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal import cluster, schema
from shoal.cluster import Cluster
from shoal.cluster.file import ClusterFile
from shoal.errors import UserError

PAGE = Path(__file__).parent.parent.parent / "docs" / "job.md"

TEN_LINES = """\
name = "four"
defaults.within_island = { latency = "0.2 ms", bandwidth = "10 Gbps" }
defaults.between_islands = { latency = "30 ms", bandwidth = "100 Mbps" }
island = [{ name = "oslo" }, { name = "bern" }, { name = "lima" }, { name = "pune" }]
device = [
  { name = "oslo", island = "oslo", count = 16, kind = "cuda", speed = "10 TFLOP/s", memory = "24 GiB" },
  { name = "bern", island = "bern", count = 16, kind = "cuda", speed = "10 TFLOP/s", memory = "24 GiB" },
  { name = "lima", island = "lima", count = 16, kind = "cuda", speed = "10 TFLOP/s", memory = "24 GiB" },
  { name = "pune", island = "pune", count = 16, kind = "cuda", speed = "10 TFLOP/s", memory = "24 GiB" },
]
"""

A = '[[device]]\nname = "a"\nspeed = "1 GFLOP/s"\nmemory = "1 GB"\n'
B = A.replace('"a"', '"b"')
PACE = '[defaults.within_island]\nlatency = "1 ms"\nbandwidth = "1 Gbps"\n'
TWO = f'[[island]]\nname = "X"\n[[island]]\nname = "Y"\n{A}island = "X"\n{B}island = "Y"\n'
THREE = TWO.replace('island = "X"\n', 'island = "X"\ncount = 2\n') + PACE
DEFAULT = '[defaults.between_islands]\nlatency = "90 ms"\nbandwidth = "5 Mbps"\n'
LINK = '[[link]]\nfrom = "X"\nto = "Y"\nlatency = "10 ms"\nbandwidth = "100 Mbps"\n'


def refused(text: str) -> str:
    with pytest.raises(UserError) as caught:
        cluster.parse(text)
    return str(caught.value)


def mbps(found: Cluster, src: str, dst: str) -> float:
    return found.link(src, dst).bandwidth_bytes_per_s * 8 / 1e6


def test_sixty_four_devices_in_four_islands_need_ten_lines() -> None:
    assert len(TEN_LINES.splitlines()) == 10
    found = cluster.parse(TEN_LINES)
    assert len(found.peers) == 64 and found.peers[0] == "bern-00" and found.peers[-1] == "pune-15"
    assert found.peers == tuple(sorted(found.peers))
    assert [sum(found.island_of(peer) == n for peer in found.peers) for n in range(4)] == [16] * 4
    assert [found.island_of(f"{name}-03") for name in ("oslo", "bern", "lima", "pune")] == [0, 1, 2, 3]
    near, far = found.link("oslo-00", "oslo-01"), found.link("oslo-00", "pune-15")
    assert (near.latency_s, near.bandwidth_bytes_per_s) == (0.2e-3, 1.25e9)
    assert (far.latency_s, far.bandwidth_bytes_per_s) == (30e-3, 12.5e6)
    assert found.device("oslo-00").memory_bytes == 24 * 2**30


def test_the_page_shows_the_ten_lines() -> None:
    assert TEN_LINES.partition("\n")[2] in PAGE.read_text(encoding="utf-8")


def test_one_device_is_a_cluster() -> None:
    found = cluster.parse(A, file="/some/where/home.toml")
    assert found.name == "home" and found.peers == ("a",)
    odd = cluster.parse(A, file="my cluster.toml")
    assert cluster.parse(cluster.dump(odd)) == odd and odd.name == "my cluster"
    assert found.hosts["a"].island == "main" and found.island_of("a") == 0


def test_devices_of_a_host_share_its_pipe_and_its_uplink() -> None:
    box = '[[host]]\nname = "box"\nup = "20 Mbps"\nmemory = "64 GiB"\nprice_per_hour = "1.20 $/h"\n'
    found = cluster.parse(f'{box}{A}host = "box"\ncount = 3\n')
    assert found.peers == ("a-0", "a-1", "a-2")
    assert found.link("a-0", "a-1") == found.link("a-2", "a-0")
    host = found.host_of("a-1")
    assert (host.up_bytes_per_s, host.memory_bytes, host.price_per_hour) == (2.5e6, 64 * 2**30, 1.2)
    assert host.down_bytes_per_s == found.link("a-0", "a-1").bandwidth_bytes_per_s == 10e9


def test_a_group_of_hosts_takes_its_devices_evenly() -> None:
    hosts = '[[host]]\nname = "node"\ncount = 2\n'
    for said in ("count = 8\n", "per_host = 4\n", "count = 8\nper_host = 4\n"):
        found = cluster.parse(f'{hosts}{A}host = "node"\n{said}{PACE}')
        assert [found.device(f"a-{n}").host for n in range(8)] == ["node-0"] * 4 + ["node-1"] * 4
    found = cluster.parse(f'{hosts}{A}host = "node"\n{PACE}')
    assert [device.host for device in found.devices] == ["node-0", "node-1"]


def test_devices_without_a_host_make_their_own() -> None:
    found = cluster.parse(f"{A}count = 12\n{PACE}")
    assert [device.host for device in found.devices] == list(found.peers) == [f"a-{n:02d}" for n in range(12)]
    found = cluster.parse(f"{A}count = 4\nper_host = 2\n{PACE}")
    assert [device.host for device in found.devices] == ["a-host-0", "a-host-0", "a-host-1", "a-host-1"]
    assert found.hosts["a-host-0"].memory_bytes == 2e9


def test_a_member_of_a_group_of_hosts_can_be_named() -> None:
    hosts = '[[host]]\nname = "node"\ncount = 2\n'
    found = cluster.parse(f'{hosts}{A}host = "node-1"\n{B}host = "node-0"\n{PACE}')
    assert (found.device("a").host, found.device("b").host) == ("node-1", "node-0")


def test_memory_bandwidth_is_assumed_by_kind() -> None:
    found = cluster.parse(f'{A}{B}kind = "cuda"\n{PACE}')
    assert found.device("a").memory_bandwidth_bytes_per_s == 20e9
    assert found.device("b").memory_bandwidth_bytes_per_s == 400e9
    assert cluster.parse(f'{A}memory_bandwidth = "1 GB/s"\n').device("a").memory_bandwidth_bytes_per_s == 1e9


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            f"{A}\n{A}",
            "7: device[1].name: 'a' is already the name of the [[device]] on line 2, got 'a'; "
            "every name must be unique",
        ),
        (
            f'[[host]]\nname = "h"\n[[host]]\nname = "h"\n{A}host = "h"\n',
            "4: host[1].name: 'h' is already the name of the [[host]] on line 2, got 'h'; every name must be unique",
        ),
        (
            f'[[host]]\nname = "a-1"\n{B}host = "a-1"\n{A}count = 2\n',
            "9: device[1].name: 'a-1' is already the name of the [[host]] on line 2, got 'a'; "
            "every name must be unique",
        ),
        (
            f'[[island]]\nname = "a"\n{A}',
            "4: device[0].name: 'a' is already the name of the [[island]] on line 2, got 'a'; "
            "every name must be unique",
        ),
        (
            f'[[island]]\nname = "X"\n[[island]]\nname = "X"\n{A}',
            "4: island[1].name: 'X' is already the name of the [[island]] on line 2, got 'X'; "
            "every name must be unique",
        ),
    ],
)
def test_names_used_twice_are_refused_with_both_lines(text: str, said: str) -> None:
    """Case A10: one host listed twice."""
    assert refused(text) == f"cluster.toml:{said}"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            TWO.replace('island = "Y"', 'island = "y"') + LINK,
            "cluster.toml:14: device[1].island: no such island, got 'y'; write 'X' or 'Y'",
        ),
        (
            f'{A}island = "X"\n',
            "cluster.toml:5: device[0].island: no such island, got 'X'; add [[island]] with name = \"X\"",
        ),
        (
            TWO.replace('island = "Y"\n', "") + LINK,
            "cluster.toml:10: device[1].island: the island is missing; write island = 'X' or 'Y'",
        ),
        (
            f'[[host]]\nname = "box"\n{A}host = "bxo"\n',
            "cluster.toml:7: device[0].host: no such host, got 'bxo'; did you mean 'box'?",
        ),
        (
            f'{A}host = "box"\n',
            "cluster.toml:5: device[0].host: no such host, got 'box'; write a [[host]], or leave it out",
        ),
        (
            f'[[host]]\nname = "box"\n{A}',
            "cluster.toml:1: host[0]: no device is on host 'box'; write a [[device]] with host = \"box\"",
        ),
        (
            f'[[island]]\nname = "X"\n[[island]]\nname = "Y"\n{A}island = "X"\n',
            "cluster.toml:3: island[1]: no host is on island 'Y'; write a [[device]] or [[host]] with island = \"Y\"",
        ),
        (
            f'[[host]]\nname = "n"\ncount = 2\n{A}host = "n"\ncount = 3\n',
            "cluster.toml:9: device[0].count: does not fit the hosts, got 3; "
            "write 2 (1 on each of 2 hosts), or leave it out",
        ),
        (
            f"{A}count = 3\nper_host = 2\n",
            "cluster.toml:5: device[0].count: does not fill hosts of 2, got 3; write a multiple of per_host",
        ),
        (f"{A}count = 0\n", "cluster.toml:5: device[0].count: must be at least 1, got 0"),
        (
            f'[[host]]\nname = "n"\n{A}host = "n"\nisland = "main"\n',
            "cluster.toml:8: device[0].island: a device with a host is on its host's island, got 'main'; leave it out",
        ),
        (
            A.replace('"1 GFLOP/s"', "1e9"),
            "cluster.toml:3: device[0].speed: a speed needs a unit, got 1000000000.0; "
            'write "1000000000.0 GFLOP/s" or "1000000000.0 TFLOP/s"',
        ),
        (
            A.replace('"1 GFLOP/s"', '"0 GFLOP/s"'),
            "cluster.toml:3: device[0].speed: must be more than 0, got '0 GFLOP/s'",
        ),
        (
            A.replace('"a"', '"a/b"'),
            "cluster.toml:2: device[0].name: not of the right form, got 'a/b'; "
            'write e.g. name = "gpu" (The worker\'s name: letters, digits, dots, dashes and underscores.)',
        ),
        ('name = "x"\n', "cluster.toml: device: the key is missing; write e.g. [[device]]"),
        (
            f'{A}[[island]]\nname = "X"\nlatency = "1 ms"\n',
            "cluster.toml:5: island[0]: the bandwidth is missing; write its bandwidth, or [defaults.within_island]",
        ),
    ],
)
def test_mistakes_about_places(text: str, said: str) -> None:
    assert refused(text) == said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            LINK.replace('"Y"', '"Z"'),
            "cluster.toml:17: link[0].to: no such island or host, got 'Z'; write 'X', 'Y', 'a' or 'b'",
        ),
        (
            LINK.replace('"Y"', '"X"'),
            "cluster.toml:17: link[0].to: a link to itself, got 'X'; "
            "inside an island, write latency and bandwidth in its [[island]]; inside a host, [defaults.within_host]",
        ),
        (
            LINK.replace('"100 Mbps"', '"0 Mbps"'),
            "cluster.toml:19: link[0].bandwidth: must be more than 0, got '0 Mbps'",
        ),
        (
            LINK.replace('"100 Mbps"', "100"),
            "cluster.toml:19: link[0].bandwidth: a bandwidth needs a unit, got 100; "
            'write "100 Mbps" (megabits per second) or "100 MB/s" (megabytes per second)',
        ),
        (
            LINK + LINK,
            "cluster.toml:20: link[1]: the way from 'X' to 'Y' has a link already, on line 15; "
            "delete one of them, or write one_way = true in both",
        ),
        (
            LINK + LINK.replace('"X"', '"_"').replace('"Y"', '"X"').replace('"_"', '"Y"'),
            "cluster.toml:20: link[1]: the way from 'Y' to 'X' has a link already, on line 15; "
            "delete one of them, or write one_way = true in both",
        ),
        (
            f'{LINK}one_way = true\nback_bandwidth = "1 Mbps"\n{DEFAULT}',
            "cluster.toml:20: link[0].one_way: a one-way link says nothing about the way back, got True; "
            "leave out one_way, or the keys of the way back",
        ),
        (
            LINK + "latncy_ms = 80\n",
            "cluster.toml:20: link[0].latncy_ms: unknown key in `latncy_ms = 80`; did you mean 'latency'?",
        ),
        (
            LINK.replace("bandwidth", "Bandwith"),
            "cluster.toml: 2 problems\n  cluster.toml:15: link[0].bandwidth: the key is missing; "
            'write e.g. bandwidth = "200 Mbps"\n'
            '  cluster.toml:19: link[0].Bandwith: unknown key in `Bandwith = "100 Mbps"`; '
            "did you mean 'bandwidth'?",
        ),
    ],
)
def test_mistakes_about_links(text: str, said: str) -> None:
    """Cases B1, B2: units, misspelt keys, self-links, two links for one pair."""
    assert refused(TWO + text) == said


def test_a_key_at_the_wrong_level_is_sent_to_its_tables() -> None:
    """Case B2: the right key at the wrong level."""
    assert "it belongs in [defaults.within_host], " in refused(f'{A}latency = "1 ms"\n')


def test_each_direction_has_its_own_speed() -> None:
    """Case B4: 0 → 1 at 100 Mbps, 1 → 0 at 10 Mbps."""
    found = cluster.parse(f'{TWO}{LINK}back_bandwidth = "10 Mbps"\nback_latency = "40 ms"\n')
    assert (mbps(found, "a", "b"), mbps(found, "b", "a")) == (100, 10)
    assert (found.link("a", "b").latency_s, found.link("b", "a").latency_s) == (0.01, 0.04)


def test_without_back_keys_a_link_is_the_same_both_ways() -> None:
    found = cluster.parse(TWO + LINK)
    assert (mbps(found, "a", "b"), mbps(found, "b", "a")) == (100, 100)


def test_a_missing_way_back_is_refused_or_the_default() -> None:
    """Case B4: the reverse link removed."""
    said = refused(f"{TWO}{LINK}one_way = true\n")
    assert said.startswith("cluster.toml:15: link: no link from 'b' to 'a'; write a [[link]] (without one_way")
    found = cluster.parse(f"{TWO}{LINK}one_way = true\n{DEFAULT}")
    assert (mbps(found, "a", "b"), mbps(found, "b", "a")) == (100, 5)


def test_a_cluster_in_pieces_is_refused_with_the_pieces() -> None:
    """Case B4: a graph in two pieces."""
    islands = "".join(f'[[island]]\nname = "{name}"\n' for name in "WXYZ")
    devices = "".join(f'{A}island = "{name}"\n'.replace('"a"', f'"{name.lower()}"') for name in "WXYZ")
    links = LINK + LINK.replace("X", "W").replace("Y", "Z")
    assert refused(islands + devices + links) == (
        "cluster.toml:29: link: the cluster is in 2 pieces without a link between them: W, Z | X, Y; "
        "write a [[link]] between them, or [defaults.between_islands]"
    )


def test_hosts_of_one_island_without_a_network_are_pieces() -> None:
    said = refused(f"{A}count = 3\n")
    assert "3 pieces without a link between them: a-0 | a-1 | a-2; write a [[link]]" in said
    assert said.endswith("or [defaults.within_island]")


def test_a_gap_inside_an_island_names_the_island() -> None:
    star = LINK.replace('"X"', '"a-0"').replace('"Y"', '"a-1"') + LINK.replace('"X"', '"a-1"').replace('"Y"', '"a-2"')
    said = refused(f"{A}count = 3\n{star}")
    assert (
        "no link from 'a-0' to 'a-2'; write latency and bandwidth in [[island]] \"main\", or [defaults.within_island]"
        in said
    )


def test_the_most_specific_link_wins() -> None:
    to_host = LINK.replace('"Y"', '"b"').replace("100 Mbps", "50 Mbps")
    pair = LINK.replace('"X"', '"a-1"').replace('"Y"', '"b"').replace("100 Mbps", "25 Mbps")
    found = cluster.parse(THREE + LINK)
    assert (mbps(found, "a-0", "b"), mbps(found, "a-1", "b")) == (100, 100)
    found = cluster.parse(THREE + LINK + to_host)
    assert (mbps(found, "a-0", "b"), mbps(found, "b", "a-1")) == (50, 50)
    found = cluster.parse(THREE + LINK + to_host + pair)
    assert (mbps(found, "a-0", "b"), mbps(found, "a-1", "b"), mbps(found, "b", "a-1")) == (50, 25, 25)
    assert mbps(found, "a-0", "a-1") == 1000


def test_a_group_in_a_link_means_each_of_its_hosts() -> None:
    found = cluster.parse(THREE + LINK.replace('"X"', '"a"').replace('"Y"', '"b"'))
    assert (mbps(found, "a-0", "b"), mbps(found, "b", "a-1")) == (100, 100)
    said = refused(THREE + LINK + LINK.replace('"X"', '"a"').replace('"Y"', '"a-1"'))
    assert said.endswith("link[1]: host 'a-1' is at both ends; link two different hosts or islands")


def test_two_links_that_cross_are_refused() -> None:
    """From host a to all of Y, and from all of X to host b: which is the way from a to b?"""
    crossing = LINK.replace('"X"', '"a"') + LINK.replace('"Y"', '"b"')
    said = refused(TWO + crossing)
    assert "cluster.toml:20: link[1]: the way from 'a' to 'b' has two links, this and that on line 15; " in said
    assert 'write a [[link]] with from = "a" and to = "b"' in said
    pair = LINK.replace('"X"', '"a"').replace('"Y"', '"b"').replace("100 Mbps", "25 Mbps")
    assert mbps(cluster.parse(TWO + crossing + pair), "a", "b") == 25


def test_pipes_are_one_per_pair_of_hosts_and_direction_unless_shared() -> None:
    own, shared = cluster.parse(THREE + LINK), cluster.parse(f"{THREE}{LINK}shared = true\n")
    ways = [("a-0", "b"), ("a-1", "b"), ("b", "a-0"), ("b", "a-1"), ("a-0", "a-1"), ("a-1", "a-0")]
    assert len({own.link(*way).pipe for way in ways}) == 6
    assert own.link("a-0", "b").pipe != own.link("a-1", "b").pipe
    assert shared.link("a-0", "b").pipe == shared.link("a-1", "b").pipe
    assert shared.link("b", "a-0").pipe == shared.link("b", "a-1").pipe != shared.link("a-0", "b").pipe
    default = '[defaults.between_islands]\nlatency = "1 ms"\nbandwidth = "5 Mbps"\nshared = true\nprice = "0.09 $/GB"\n'
    found = cluster.parse(THREE + default)
    assert found.link("a-0", "b").pipe == found.link("a-1", "b").pipe
    assert found.link("a-0", "b").price_per_byte == 0.09e-9 and found.link("a-0", "a-1").price_per_byte == 0


def test_jitter_and_loss_hold_both_ways_and_come_from_the_defaults() -> None:
    unsteady = 'jitter = "2 ms"\nloss = "0.5 %"\n'
    found = cluster.parse(f"{TWO}{LINK}{unsteady}")
    assert cluster.parse(cluster.dump(found)) == found
    for way in (("a", "b"), ("b", "a")):
        assert (found.link(*way).jitter_s, found.link(*way).loss) == (0.002, 0.005)
    default = f'[defaults.within_island]\nlatency = "1 ms"\nbandwidth = "1 Gbps"\n{unsteady}'
    inside = cluster.parse(f"{default}{A}count = 2\n").link("a-0", "a-1")
    assert (inside.jitter_s, inside.loss) == (0.002, 0.005)


def test_a_way_without_latency_cannot_vary_around_it() -> None:
    still = LINK.replace('"10 ms"', '"0 ms"')
    assert still != LINK
    assert "a way without latency cannot have jitter" in refused(f'{TWO}{still}jitter = "2 ms"\n')


def test_a_host_is_as_fast_as_its_fastest_link_unless_told_otherwise() -> None:
    found = cluster.parse(f'{TWO}{LINK}back_bandwidth = "10 Mbps"\n')
    a, b = found.hosts["a"], found.hosts["b"]
    assert (a.up_bytes_per_s, a.down_bytes_per_s) == (12.5e6, 1.25e6)
    assert (b.up_bytes_per_s, b.down_bytes_per_s) == (1.25e6, 12.5e6)
    assert cluster.parse(TEN_LINES).hosts["oslo-00"].up_bytes_per_s == 1.25e9


def test_a_missing_file_names_its_path(tmp_path: Path) -> None:
    """Case B3: no cluster file must not mean training alone."""
    with pytest.raises(UserError, match=r"nope\.toml: no such file"):
        cluster.load(tmp_path / "nope.toml")
    (tmp_path / "empty.toml").touch()
    with pytest.raises(UserError, match=r"empty\.toml: the file is empty"):
        cluster.load(tmp_path / "empty.toml")


def test_the_template_loads_and_explains_every_key() -> None:
    text = cluster.template()
    assert len(cluster.parse(text).peers) == 6
    comments = [line.removeprefix("# ") for line in text.splitlines()]
    for table in schema.tables(ClusterFile):
        assert not table.keys or not table.header or table.header in comments
        for name, known in table.keys.items():
            assert known.description
            assert any(line.startswith(f"{name} = ") for line in comments)


@pytest.mark.parametrize(
    "table", [table for table in schema.tables(ClusterFile) if table.keys], ids=lambda table: table.header or "top"
)
def test_the_page_has_every_key_with_its_default(table: schema.Table) -> None:
    page = PAGE.read_text(encoding="utf-8")
    heading = f"### `{table.header}`" if table.path else "### At the top of the cluster file"
    section = page.partition(f"{heading}\n")[2].partition("\n#")[0]
    rows = {row.split("|")[1].strip(): row.split("|") for row in section.splitlines() if row.startswith("| `")}
    assert list(rows) == [f"`{name}`" for name in table.keys]
    for name, known in table.keys.items():
        told = rows[f"`{name}`"][3].strip()
        default = schema.default(known)
        assert told == ("required" if known.is_required() else f"`{default}`" if default else "–")
