from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.doctor.cgroups import Grant, grant

ROOT = "/sys/fs/cgroup"


@pytest.mark.parametrize(
    ("files", "granted"),
    [
        ({}, Grant()),
        ({"cpu.max": "max 100000", "memory.max": "max"}, Grant()),
        ({"cpu.max": "150000 100000", "memory.max": "4294967296"}, Grant(1.5, 4294967296.0)),
        ({"cpu.max": "junk", "memory.max": ""}, Grant()),
        ({"cpu.max": "100000 0"}, Grant()),
    ],
)
def test_a_container_sees_its_limits_at_the_root(files: dict[str, str], granted: Grant) -> None:
    texts = {f"{ROOT}/{name}": text for name, text in files.items()}
    assert grant({"/proc/self/cgroup": "0::/", **texts}.get) == granted
    assert grant({"/proc/self/cgroup": "0::/docker/of-the-host", **texts}.get) == granted
    assert grant(texts.get) == granted


def test_the_least_of_all_groups_around_a_process_counts() -> None:
    files = {
        "/proc/self/cgroup": "0::/system.slice/job.service",
        f"{ROOT}/system.slice/cpu.max": "200000 100000",
        f"{ROOT}/system.slice/job.service/cpu.max": "400000 100000",
        f"{ROOT}/system.slice/memory.max": "max",
        f"{ROOT}/system.slice/job.service/memory.max": "1000000",
    }
    assert grant(files.get) == Grant(2.0, 1e6)


def test_the_first_version_of_control_groups() -> None:
    files = {
        "/proc/self/cgroup": "9:cpu,cpuacct:/docker/a\n4:memory:/docker/a\n1:name=systemd:/docker/a",
        f"{ROOT}/cpu,cpuacct/docker/a/cpu.cfs_quota_us": "50000",
        f"{ROOT}/cpu,cpuacct/docker/a/cpu.cfs_period_us": "100000",
        f"{ROOT}/cpu,cpuacct/cpu.cfs_quota_us": "-1",
        f"{ROOT}/cpu,cpuacct/cpu.cfs_period_us": "100000",
        f"{ROOT}/memory/docker/a/memory.limit_in_bytes": "2000000",
        f"{ROOT}/memory/memory.limit_in_bytes": "9223372036854771712",
    }
    assert grant(files.get) == Grant(0.5, 2e6)


@given(own=st.text(max_size=60), text=st.text(max_size=30))
def test_whatever_the_files_say_it_is_read(own: str, text: str) -> None:
    grant(lambda path: own if path == "/proc/self/cgroup" else text)
