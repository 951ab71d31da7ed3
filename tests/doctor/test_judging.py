"""What is seen of a machine is judged: every trap with a made machine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from shoal import cluster as clusters
from shoal.doctor import (
    Finding,
    check_addresses,
    check_clock,
    check_devices,
    check_environment,
    check_job,
    check_system,
)
from shoal.doctor.addresses import Network
from shoal.doctor.clock import Clock
from shoal.doctor.devices import Machine, cgroup_quota
from shoal.doctor.system import System

MACHINE = Machine(
    torch="2.13.0+cpu",
    build=None,
    gpus=(),
    nvidia=False,
    gloo=True,
    nccl=False,
    processors=8,
    allowed=8,
    quota=None,
    memory_bytes=32e9,
)
GPU = replace(MACHINE, build="12.8", gpus=(("cuda", "H200", 140e9),), nvidia=True, nccl=True)
NETWORK = Network(
    interfaces={"lo": ["127.0.0.1", "::1"], "eth0": ["192.168.1.7", "fd00::7"], "docker0": ["172.17.0.1"]},
    routes=["192.168.1.7"],
    name="oslo",
    resolved=["192.168.1.7"],
)
SYSTEM = System(open_files=65536, disk_bytes=500e9, shared_bytes=8e9, tcp_bytes=(32e6, 32e6), lab="ok")


def by_check(findings: object) -> dict[str, Finding]:
    found = list(findings)  # type: ignore[call-overload]
    assert all(finding.mend for finding in found if finding.state in ("warn", "fail"))
    assert all("\n" not in finding.line() for finding in found)
    worst = ("ok", "note", "warn", "fail").index
    return {f.check: f for f in sorted(found, key=lambda f: worst(f.state))}


def test_a_healthy_machine_has_nothing_to_mend() -> None:
    runs = Path("runs")
    found = [*check_devices(MACHINE), *check_devices(GPU), *check_addresses(NETWORK), *check_environment({})]
    found += [*check_system(SYSTEM, runs), *check_clock(Clock(now=2e9, installed=1.9e9, synchronised=True))]
    assert {finding.state for finding in found} == {"ok"}


@pytest.mark.parametrize(
    ("machine", "check", "state", "text"),
    [
        (replace(MACHINE, torch="2.4.1"), "torch", "fail", "Shoal is made for >=2.10,<2.14"),
        (replace(MACHINE, torch="2.14.0"), "torch", "fail", "made for"),
        (replace(MACHINE, torch="2.10.0a0+git"), "torch", "ok", "2.10.0a0"),
        (replace(MACHINE, nvidia=True), "device", "warn", "this torch is a CPU build"),
        (replace(MACHINE, nvidia=True, build="12.8"), "device", "warn", "torch cannot use it"),
        (replace(MACHINE, gloo=False), "device", "warn", "no Gloo"),
        (replace(GPU, nccl=False), "device", "warn", "no NCCL"),
        (replace(MACHINE, allowed=2), "processors", "note", "2 of 8"),
        (replace(MACHINE, quota=1.5), "processors", "note", "1.5 of 8"),
        (replace(MACHINE, memory_bytes=5e8), "memory", "warn", "500 MB"),
    ],
)
def test_devices(machine: Machine, check: str, state: str, text: str) -> None:
    found = by_check(check_devices(machine))[check]
    assert (found.state, text in found.text) == (state, True), found


@pytest.mark.parametrize(
    ("text", "quota"), [("150000 100000", 1.5), ("max 100000", None), ("", None), (None, None), ("junk", None)]
)
def test_quota_of_a_control_group(text: str | None, quota: float | None) -> None:
    assert cgroup_quota(text) == quota


@pytest.mark.parametrize(
    ("offered", "interface", "state", "text"),
    [
        ("127.0.0.1", "lo", "warn", "only this machine can reach"),
        ("::1", "lo", "warn", "only this machine can reach"),
        ("169.254.3.4", "eth0", "warn", "the same cable"),
        ("172.17.0.2", "eth0", "warn", "inside a container"),
        ("10.1.2.3", "veth12", "warn", "inside a container"),
        ("100.101.102.103", "tailscale0", "note", "a tunnel"),
        ("100.64.0.9", "eth0", "note", "provider's NAT"),
        ("10.0.0.9", "wg0", "note", "a tunnel"),
        ("8.8.4.4", "eth0", "ok", "8.8.4.4 (eth0"),
    ],
)
def test_addresses_that_others_would_be_told(offered: str, interface: str, state: str, text: str) -> None:
    """Cases A1 and A4."""
    network = replace(
        NETWORK, interfaces={"lo": ["127.0.0.1", "::1"], interface: [offered, "fd00::7"]}, routes=[offered]
    )
    found = by_check(check_addresses(network, coordinator="10.9.9.9"))["address"]
    assert found.state == state and text in found.text, found


def test_no_route_and_one_family() -> None:
    assert by_check(check_addresses(replace(NETWORK, routes=[])))["address"].state == "warn"
    only = replace(NETWORK, interfaces={"lo": ["127.0.0.1"], "eth0": ["192.168.1.7"]})
    found = by_check(check_addresses(only))["address"]
    assert found.state == "note" and "IPv4 only" in found.text  # case A5


def test_what_the_hosts_own_name_resolves_to_is_said_because_others_go_by_it() -> None:
    """Case A1: Debian's 127.0.1.1."""
    found = by_check(check_addresses(replace(NETWORK, resolved=["127.0.1.1"])))["host name"]
    assert found.state == "note" and "127.0.1.1" in found.text and "GLOO_SOCKET_IFNAME" in found.mend
    assert "does not resolve" in by_check(check_addresses(replace(NETWORK, resolved=[])))["host name"].text


@pytest.mark.parametrize("setting", ["nosuch0", "^lo,docker"])
def test_interface_settings_that_name_nothing(setting: str) -> None:
    """Case A2: the message lists what there is."""
    found = by_check(check_addresses(NETWORK, setting))["address"]
    assert found.state == "fail" and setting in found.text and "lo" in found.mend


@pytest.mark.parametrize(
    ("environment", "check", "state", "text"),
    [
        ({"RANK": "0", "WORLD_SIZE": "2"}, "launcher", "fail", "not MASTER_ADDR, MASTER_PORT"),
        ({"MASTER_ADDR": "oslo"}, "launcher", "fail", "not MASTER_PORT"),
        ({"MASTER_ADDR": "a", "MASTER_PORT": "1", "RANK": "2", "WORLD_SIZE": "2"}, "launcher", "fail", "no such rank"),
        ({"MASTER_ADDR": "a", "MASTER_PORT": "x", "RANK": "0", "WORLD_SIZE": "2"}, "launcher", "fail", "not a port"),
        ({"MASTER_ADDR": "a", "MASTER_PORT": "1", "RANK": "1", "WORLD_SIZE": "2"}, "launcher", "ok", "rank 1 of 2"),
        ({"SHOAL_PORT_RANGE": "40000"}, "ports", "fail", "not a range"),
        ({"SHOAL_PORT_RANGE": "40000-40050"}, "ports", "ok", "51 ports"),
    ],
)
def test_variables(environment: dict[str, str], check: str, state: str, text: str) -> None:
    found = by_check(check_environment(environment))[check]
    assert found.state == state and text in found.text, found


def test_a_port_range_that_is_all_taken_names_who_has_it() -> None:
    """Cases A3 and A6."""
    import socket

    with socket.create_server(("0.0.0.0", 0)) as server:
        port = server.getsockname()[1]
        found = by_check(check_environment({"SHOAL_PORT_RANGE": f"{port}-{port}"}))["ports"]
    assert found.state == "fail" and "process" in found.text


@pytest.mark.parametrize(
    ("system", "check", "state"),
    [
        (replace(SYSTEM, disk_bytes=1e8), "disk", "fail"),
        (replace(SYSTEM, disk_bytes=5e9), "disk", "warn"),
        (replace(SYSTEM, open_files=256), "open files", "warn"),
        (replace(SYSTEM, open_files=None), "open files", "ok"),
        (replace(SYSTEM, shared_bytes=64e6), "/dev/shm", "warn"),
        (replace(SYSTEM, tcp_bytes=(6e6, 4e6)), "tcp", "note"),
        (replace(SYSTEM, lab="it needs Linux"), "lab", "note"),
    ],
)
def test_systems(system: System, check: str, state: str) -> None:
    assert by_check(check_system(system, Path("runs")))[check].state == state


@pytest.mark.parametrize(
    ("clock", "state"),
    [
        (Clock(now=1e9, installed=1.9e9, synchronised=True), "fail"),
        (Clock(now=2e9, installed=1.9e9, synchronised=False), "warn"),
        (Clock(now=2e9, installed=1.9e9, synchronised=None), "note"),
    ],
)
def test_clocks(clock: Clock, state: str) -> None:
    assert by_check(check_clock(clock))["clock"].state == state


def test_jobs_that_do_not_fit() -> None:
    text = '[[device]]\nname = "{0}"\ncount = 12\nkind = "{1}"\nspeed = "1 TFLOP/s"\nmemory = "16 GiB"\n'
    net = '[defaults.within_island]\nlatency = "1 ms"\nbandwidth = "1 Gbps"\n'
    cpus, gpus = (clusters.parse(net + text.format("x", kind)) for kind in ("cpu", "cuda"))
    states = [(finding.state, finding.text) for finding in check_job("j", cpus, MACHINE, threads=1)]
    assert [state for state, _ in states] == ["ok", "note", "note"]
    assert "12 threads of workers on 8 processors" in states[1][1]
    assert [finding.state for finding in check_job("j", gpus, MACHINE, threads=1)] == ["ok", "warn"]


def test_this_machine_can_be_looked_at() -> None:
    found = [*check_devices(Machine.here()), *check_addresses(Network.here()), *check_clock(Clock.here())]
    found += check_system(System.here(Path("no/such/folder/yet")), Path("runs"))
    assert {"torch", "memory", "interfaces", "clock", "disk", "lab"} <= {finding.check for finding in found}
    assert by_check(found)["torch"].state == "ok"
