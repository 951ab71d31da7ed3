"""A job in a lab: the same bits as in virtual time, computations at the pace of the file's devices."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shoal import lab as labs
from shoal.lab import namespaces

CLUSTER = """
[defaults.between_islands]
latency = "5 ms"
bandwidth = "50 Mbps"
[[island]]
name = "A"
[[island]]
name = "B"
[[device]]
name = "a"
island = "A"
kind = "cuda"
speed = "50 MFLOP/s"
memory = "1 GiB"
[[device]]
name = "b"
island = "B"
speed = "{speed}"
memory = "1 GiB"
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    path = tmp_path / "far.toml"
    path.write_text(CLUSTER.format(speed="20 MFLOP/s"))
    return path


def summary(folder: str) -> dict[str, Any]:
    return json.loads(Path(f"{folder}/1/summary.json").read_text())


@pytest.mark.parametrize("mixing", ['{name="all-reduce"}', '{name="gossip", topology="ring"}'])
def test_a_lab_trains_what_virtual_time_rehearses(
    own_labs: None, shoal: Callable[..., Any], tiny_job: Path, cluster: Path, mixing: str
) -> None:
    """A device of a kind that is not here is played by the CPU."""
    common = ["--cluster", cluster, "--set", f"mixing={mixing}"]
    assert shoal("train", tiny_job, "--world", "lab", *common).status == 0
    assert labs.running() == []
    assert shoal("simulate", tiny_job, *common).status == 0
    real, rehearsed = summary("runs/tiny-lab"), summary("runs/tiny-virtual")
    assert real["world"] == "lab" and real["digests"] == rehearsed["digests"]
    assert real["sent_bytes"] == rehearsed["sent_bytes"]
    assert set(real["pace_debt"]) == {"a", "b"}
    assert real["seconds"] >= 0.98 * rehearsed["seconds"]  # slower devices and links never make it faster


def test_a_machine_that_is_too_slow_says_so(
    own_labs: None, shoal: Callable[..., Any], tiny_job: Path, cluster: Path
) -> None:
    cluster.write_text(CLUSTER.format(speed="900 TFLOP/s"))
    ran = shoal("train", tiny_job, "--world", "lab", "--cluster", cluster, "--steps", 6)
    assert ran.status == 0
    assert "NOT KEPT by" in ran.out and "b took" in ran.out
    free = shoal("train", tiny_job, "--world", "lab", "--cluster", cluster, "--steps", 2, "--no-pace")
    assert free.status == 0 and "NOT KEPT" not in free.out


def test_a_script_kills_a_host_and_the_others_name_it(
    own_labs: None, shoal: Callable[..., Any], tiny_job: Path, cluster: Path, tmp_path: Path
) -> None:
    script = tmp_path / "power.toml"
    script.write_text('[[event]]\nat = "100 ms"\ndo = "kill"\nhost = "b"\n')
    ran = shoal(
        "train", tiny_job, "--world", "lab", "--cluster", cluster, "--script", script,
        "--steps", 500, "--set", "run.peer_deadline='3 s'",
    )  # fmt: skip
    assert ran.status == 3
    assert "b: killed by signal 9 (SIGKILL)" in ran.err and "peer 'b' at step" in ran.err
    assert labs.running() == [] and namespaces.processes_in(set()) == []


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--script", "x.toml"], "only a lab can follow a script"),
        (["--world", "lab", "--script", "x.toml"], "no such file"),
    ],
)
def test_a_script_needs_a_lab_and_a_file(
    shoal: Callable[..., Any], tiny_job: Path, cluster: Path, options: list[str], problem: str
) -> None:
    ran = shoal("train", tiny_job, "--cluster", cluster, *options)
    assert ran.status == 2 and problem in ran.err
