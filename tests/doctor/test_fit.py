from __future__ import annotations

from dataclasses import replace

import pytest

from doctor.machines import GPU, MACHINE
from shoal import cluster as clusters
from shoal.cluster import Cluster
from shoal.doctor import Finding, check_job
from shoal.doctor.devices import Machine


def made(kind: str, count: int, memory: str = "1 GiB", host: str = "oslo") -> Cluster:
    return clusters.parse(
        '[defaults.within_island]\nlatency = "1 ms"\nbandwidth = "1 Gbps"\n[[host]]\nname = "bergen"\n'
        f'[[host]]\nname = "{host}"\n'
        f'[[device]]\nname = "near"\nhost = "{host}"\ncount = {count}\nkind = "{kind}"\n'
        f'speed = "1 TFLOP/s"\nmemory = "{memory}"\n'
        '[[device]]\nname = "far"\nhost = "bergen"\nkind = "cuda"\nspeed = "1 TFLOP/s"\nmemory = "16 GiB"\n'
    )


def judged(cluster: Cluster, machine: Machine = MACHINE, **options: str) -> list[Finding]:
    found = list(check_job("j", cluster, machine, 1, **options))
    assert all(finding.mend for finding in found if finding.state in ("warn", "fail"))
    return found


def test_only_the_devices_of_this_machine_count_where_it_is_in_the_file() -> None:
    (found,) = judged(made("cpu", 8), host="oslo.example.org")
    assert found.state == "ok" and "8 x cpu on oslo, this machine" in found.text


def test_otherwise_all_of_them_do() -> None:
    found = judged(made("cpu", 8), host="trondheim")
    assert [(f.state, "1 devices of kind cuda" in f.text) for f in found] == [("ok", False), ("warn", True)]


@pytest.mark.parametrize(
    ("cluster", "machine", "state", "text"),
    [
        (made("cpu", 12), MACHINE, "note", "12 threads of workers on 8 processors"),
        (made("cpu", 2), replace(MACHINE, quota=1.5), "note", "2 threads of workers on 1.5 processors"),
        (made("cpu", 2, "20 GiB"), MACHINE, "warn", "this machine 32 GB"),
        (made("cuda", 2), GPU, "warn", "2 devices of kind cuda, and this machine has 1"),
        (made("cuda", 1), MACHINE, "warn", "this machine has 0"),
        (made("cuda", 1, "141 GB"), GPU, "warn", "a cuda device here 140 GB"),
        (made("mps", 1), GPU, "warn", "kind mps"),
    ],
)
def test_traps(cluster: Cluster, machine: Machine, state: str, text: str) -> None:
    _, *found = judged(cluster, machine, host="oslo")
    assert [(f.state, text in f.text) for f in found] == [(state, True)], found


def test_memory_of_machines_elsewhere_is_only_noted() -> None:
    found = judged(made("cpu", 2, "20 GiB"), GPU)
    assert [f.state for f in found] == ["ok", "note"]


@pytest.mark.parametrize(("size", "states"), [("3", ["ok"]), ("2", ["ok", "fail"]), ("", ["ok"]), ("x", ["ok"])])
def test_a_launcher_must_start_as_many_as_there_are(size: str, states: list[str]) -> None:
    assert [f.state for f in judged(made("cpu", 2), host="oslo", world_size=size)] == states
