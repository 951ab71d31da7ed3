from __future__ import annotations

from itertools import permutations

import pytest

from probe.virtual import made_survey
from shoal import cluster as clusters
from shoal.cluster import Cluster
from shoal.errors import UserError
from shoal.probe import Survey, as_text, merge

OLD = """
name = "mine"
[[island]]
name = "oslo"
latency = "0.1 ms"
bandwidth = "1 Gbps"
[[island]]
name = "bern"
latency = "0.1 ms"
bandwidth = "1 Gbps"
[[host]]
name = "a0"
island = "oslo"
up = "800 Mbps"
price_per_hour = "1.5 $/h"
[[host]]
name = "a1"
island = "oslo"
[[host]]
name = "b0"
island = "bern"
[[host]]
name = "b1"
island = "bern"
[[device]]
name = "a0-0"
host = "a0"
speed = "200 GFLOP/s"
memory = "4 GiB"
[[device]]
name = "a0-old"
host = "a0"
speed = "50 GFLOP/s"
memory = "4 GiB"
[[device]]
name = "a1-0"
host = "a1"
speed = "100 GFLOP/s"
memory = "4 GiB"
[[device]]
name = "b0-0"
host = "b0"
speed = "100 GFLOP/s"
memory = "4 GiB"
[[device]]
name = "b1-0"
host = "b1"
speed = "100 GFLOP/s"
memory = "4 GiB"
[[link]]
from = "oslo"
to = "bern"
latency = "10 ms"
bandwidth = "100 Mbps"
price = "0.09 $/GB"
loss = "0.1 %"
shared = true
"""


def old() -> Cluster:
    return clusters.parse(OLD)


def survey(*hosts: str, between: float = 12.5e6) -> Survey:
    pairs = {(a, b): 125e6 if a[0] == b[0] else between for a, b in permutations(hosts, 2)}
    return made_survey(dict.fromkeys(hosts, 1), pairs)


def test_what_was_measured_is_replaced_and_reported() -> None:
    merged, changes = merge(old(), survey("a0", "a1", "b0", "b1", between=6.25e6))
    link = merged.links["a0", "b1"]
    assert link.bandwidth_bytes_per_s == 6.25e6
    assert merged.device("a0-0").flops == 1e11
    told = [str(change) for change in changes]
    assert "device a0-0 speed: 200 GFLOP/s → 100 GFLOP/s (-50%)" in told
    assert "a0 → b1 bandwidth: 100 Mbps → 50 Mbps (-50%)" in told
    assert not any("device a1-0" in line for line in told), "it has not changed"


def test_what_a_person_wrote_is_kept() -> None:
    merged, _ = merge(old(), survey("a0", "a1", "b0", "b1"))
    link = merged.links["a0", "b0"]
    assert link.price_per_byte == pytest.approx(0.09e-9) and link.loss == 0.001
    assert link.pipe == merged.links["a1", "b1"].pipe, "it is still one shared pipe"
    assert merged.hosts["a0"].price_per_hour == 1.5
    assert merged.hosts["a1"].up_bytes_per_s == 125e6
    assert set(merged.islands) == {"oslo", "bern"} and merged.name == "mine"
    assert merged.device("a0-old").flops == 50e9


def test_absent_machines_keep_their_numbers() -> None:
    found = survey("a0", "a1", "b0")
    merged, changes = merge(old(), found)
    assert set(merged.hosts) == {"a0", "a1", "b0", "b1"}
    assert merged.device("b1-0") == old().device("b1-0")
    assert merged.links["a0", "b1"].bandwidth_bytes_per_s == 12.5e6
    assert merged.links["b0", "b1"].bandwidth_bytes_per_s == 125e6
    assert [str(c) for c in changes if "b1" in c.what] == ["host b1: not measured now, kept as it was"]
    text = as_text(merged, found, when="today")
    assert "Kept from an older file, not measured now: b1." in text.replace("\n# ", " ")
    assert clusters.parse(text) == merged


def test_a_new_host_joins_its_island_and_is_guessed_towards_absent_ones() -> None:
    merged, changes = merge(old(), survey("a0", "a1", "a2", "b0"))
    assert merged.hosts["a2"].island == "oslo"
    assert "host a2: new, 1 device" in [str(change) for change in changes]
    assert merged.links["a2", "b1"].bandwidth_bytes_per_s == pytest.approx(12.5e6)


def test_an_island_that_split_leaves_its_name_to_the_larger_part() -> None:
    pairs = {(a, b): 125e6 if a[0] == b[0] else 1e6 for a, b in permutations(["a0", "a1", "b0", "b1"], 2)}
    for host in ("a0", "b0", "b1"):
        pairs["a1", host] = pairs[host, "a1"] = 1e5
    merged, _ = merge(old(), made_survey(dict.fromkeys(["a0", "a1", "b0", "b1"], 1), pairs))
    assert {host.name: host.island for host in merged.hosts.values()}["b0"] == "bern"
    assert len({merged.hosts[host].island for host in ("a0", "a1", "b0")}) == 3


def test_merging_what_is_there_already_changes_nothing() -> None:
    found = survey("a0", "a1", "b0", "b1")
    once, _ = merge(old(), found)
    twice, changes = merge(once, found)
    assert twice == once and changes == []


def test_strangers_that_never_met_are_refused() -> None:
    alone = 'device = [{ name = "x-0", speed = "1 GFLOP/s", memory = "1 GiB" }]'
    with pytest.raises(UserError, match="nothing is known of the way"):
        merge(clusters.parse(alone), made_survey({"y": 1}, {}))
