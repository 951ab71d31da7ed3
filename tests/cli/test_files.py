from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shoal import cluster, job

Shoal = Callable[..., Any]

CLUSTER = """
[[island]]
name = "oslo"
latency = "0.1 ms"
bandwidth = "10 Gbps"
[[island]]
name = "rome"
latency = "0.1 ms"
bandwidth = "10 Gbps"
[[device]]
name = "a"
island = "oslo"
speed = "10 TFLOP/s"
memory = "24 GiB"
[[device]]
name = "b"
island = "rome"
speed = "20 TFLOP/s"
memory = "16 GiB"
[[link]]
from = "oslo"
to = "rome"
latency = "20 ms"
bandwidth = "100 Mbps"
"""


def test_init_writes_files_that_load_and_says_what_is_next(shoal: Shoal, tmp_path: Path) -> None:
    folder = tmp_path / "new"
    ran = shoal("init", folder)
    assert ran.status == 0
    assert ran.out.splitlines() == [
        f"wrote {folder / 'job.toml'}",
        f"wrote {folder / 'cluster.toml'}",
        f"next: shoal train {folder / 'job.toml'}",
    ]
    assert job.load(folder / "job.toml").run.steps > 0
    assert cluster.load(folder / "cluster.toml").peers


def test_init_does_not_overwrite_unless_forced(shoal: Shoal, tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text("mine")
    ran = shoal("init", tmp_path)
    assert ran.status == 2 and "job.toml" in ran.err and "--force" in ran.err
    assert (tmp_path / "job.toml").read_text() == "mine" and not (tmp_path / "cluster.toml").exists()
    assert shoal("init", tmp_path, "--force").status == 0
    assert (tmp_path / "job.toml").read_text() == job.template()


def test_init_where_nothing_can_be_written(shoal: Shoal, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    ran = shoal("init", tmp_path / "file")
    assert ran.status == 2 and str(tmp_path / "file") in ran.err


def test_cluster_show_writes_out_the_whole_matrix(shoal: Shoal, tmp_path: Path) -> None:
    """Case B4: both directions of every link, as they will be used."""
    (tmp_path / "c.toml").write_text(CLUSTER)
    ran = shoal("cluster", "show", tmp_path / "c.toml")
    assert ran.status == 0
    devices, hosts, matrix = ran.out.strip().split("\n\n")
    assert devices.splitlines()[0].split() == ["device", "host", "island", "kind", "speed", "memory"]
    assert devices.splitlines()[1].split()[:3] == ["a", "a", "oslo"] and "10 TFLOP/s" in devices and "16 GiB" in devices
    assert len(hosts.splitlines()) == 3
    assert matrix.splitlines()[0].split() == ["from", "\\", "to", "a", "b"]
    assert matrix.count("20 ms 100 Mbps") == 2


def test_cluster_show_json_is_in_plain_units(shoal: Shoal, tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text(CLUSTER)
    shown = json.loads(shoal("cluster", "show", tmp_path / "c.toml", "--json").out)
    link = next(link for link in shown["links"] if (link["from"], link["to"]) == ("b", "a"))
    assert (link["latency_s"], link["bandwidth_bytes_per_s"]) == (0.02, 12_500_000.0)
    assert [d["name"] for d in shown["devices"]] == ["a", "b"]


def test_cluster_show_of_a_missing_file_names_it(shoal: Shoal, tmp_path: Path) -> None:
    """Case B3."""
    ran = shoal("cluster", "show", tmp_path / "nope.toml")
    assert ran.status == 2 and "nope.toml" in ran.err
