"""A made machine, and what every finding must keep to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from shoal.doctor import Finding
from shoal.doctor.devices import Machine
from shoal.doctor.network import Network
from shoal.doctor.system import Lab, System

MACHINE = Machine(
    torch="2.13.0+cpu",
    build=None,
    gpus=(),
    nvidia=False,
    driver=False,
    gloo=True,
    nccl=False,
    processors=8,
    allowed=8,
    quota=None,
    threads=8,
    memory_bytes=32e9,
)
GPU = replace(MACHINE, build="12.8", gpus=(("cuda", "H200", 140e9),), nvidia=True, driver=True, nccl=True)
NETWORK = Network(
    interfaces={"lo": ["127.0.0.1", "::1"], "eth0": ["192.168.1.7", "fd00::7"], "docker0": ["172.17.0.1"]},
    routes=["192.168.1.7", "fd00::7"],
    name="oslo",
    resolved=["192.168.1.7"],
    offered="192.168.1.7",
)
SYSTEM = System(
    open_files=65536, disk_bytes=500e9, writable=True, shared_bytes=8e9, tcp_bytes=(32e6, 32e6), lab=Lab(as_user=True)
)


def by_check(findings: Iterable[Finding]) -> dict[str, Finding]:
    """The worst finding of each check; all of them are one line, and every trouble has a mend."""
    found = list(findings)
    assert all(finding.mend for finding in found if finding.state in ("warn", "fail")), found
    assert all("\n" not in finding.line() for finding in found)
    worst = ("ok", "note", "warn", "fail").index
    return {finding.check: finding for finding in sorted(found, key=lambda finding: worst(finding.state))}
