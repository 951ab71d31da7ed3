from __future__ import annotations

from dataclasses import replace

import pytest

from doctor.machines import GPU, MACHINE, by_check
from shoal.doctor import check_devices
from shoal.doctor.devices import Machine, has_nvidia


@pytest.mark.parametrize("machine", [MACHINE, GPU])
def test_a_healthy_machine_has_nothing_to_mend(machine: Machine) -> None:
    assert {finding.state for finding in check_devices(machine)} == {"ok"}


@pytest.mark.parametrize(
    ("machine", "check", "state", "text"),
    [
        (replace(MACHINE, torch="2.4.1"), "torch", "fail", "Shoal is made for >=2.10,<2.14"),
        (replace(MACHINE, torch="2.14.0"), "torch", "fail", "made for"),
        (replace(MACHINE, torch="nightly"), "torch", "fail", "made for"),
        (replace(MACHINE, torch="2.10.0a0+git"), "torch", "ok", "2.10.0a0"),
        (replace(MACHINE, nvidia=True, driver=True), "device", "warn", "this torch is a CPU build"),
        (replace(MACHINE, nvidia=True, build="12.8"), "device", "warn", "no driver"),
        (replace(MACHINE, nvidia=True, driver=True, build="12.8"), "device", "warn", "torch cannot use it"),
        (replace(MACHINE, gpus=(("xpu", "Arc", 16e9),), build="2025"), "device", "ok", "xpu: Arc, 16 GB"),
        (replace(MACHINE, gloo=False), "collectives", "warn", "no Gloo"),
        (replace(GPU, nccl=False), "collectives", "warn", "no NCCL"),
        (replace(MACHINE, allowed=2, threads=2), "processors", "note", "2 of 8"),
        (replace(MACHINE, quota=1.5), "processors", "note", "1.5 of 8"),
        (replace(MACHINE, quota=1.5), "threads", "note", "8 threads, more than the 1.5"),
        (replace(MACHINE, quota=0.0), "processors", "note", "0 of 8"),
        (replace(MACHINE, memory_bytes=5e8), "memory", "warn", "500 MB"),
    ],
)
def test_traps(machine: Machine, check: str, state: str, text: str) -> None:
    found = by_check(check_devices(machine))[check]
    assert (found.state, text in found.text) == (state, True), found


def test_an_nvidia_gpu_on_the_bus_is_seen_without_its_driver() -> None:
    sound, display, other = ("0x10de", "0x040300"), ("0x10de", "0x030200"), ("0x1002", "0x030000")
    assert has_nvidia(iter([sound, display]))
    assert not has_nvidia(iter([sound, other, ("", "")]))


def test_this_machine_can_be_looked_at() -> None:
    machine = Machine.here()
    assert by_check(check_devices(machine))["torch"].state == "ok"
    assert 0 < machine.granted <= machine.processors and machine.memory_bytes > 0
