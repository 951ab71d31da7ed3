from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from doctor.machines import SYSTEM, by_check
from shoal.doctor import check_system
from shoal.doctor.system import Lab, System, try_lab


def test_a_healthy_system_has_nothing_to_mend() -> None:
    assert {finding.state for finding in check_system(SYSTEM, Path("runs"))} == {"ok"}


@pytest.mark.parametrize(
    ("system", "check", "state", "text"),
    [
        (replace(SYSTEM, disk_bytes=1e8), "disk", "fail", "100 MB free"),
        (replace(SYSTEM, disk_bytes=5e9), "disk", "warn", "5 GB free"),
        (replace(SYSTEM, writable=False), "disk", "fail", "may not write runs"),
        (replace(SYSTEM, open_files=256), "open files", "warn", "256"),
        (replace(SYSTEM, open_files=None), "open files", "ok", "any number"),
        (replace(SYSTEM, shared_bytes=64e6), "/dev/shm", "warn", "64 MB"),
        (replace(SYSTEM, tcp_bytes=(6e6, 4e6)), "tcp", "note", "too little"),
        (replace(SYSTEM, lab=Lab("the command ip is not here", "install it")), "lab", "note", "the command ip"),
        (replace(SYSTEM, lab=Lab()), "lab", "ok", "works here"),
    ],
)
def test_traps(system: System, check: str, state: str, text: str) -> None:
    if check == "tcp" and sys.platform != "linux":
        pytest.skip("buffers are Linux's")
    found = by_check(check_system(system, Path("runs")))[check]
    assert (found.state, text in found.text) == (state, True), found


def test_what_is_not_known_is_not_said() -> None:
    found = by_check(check_system(replace(SYSTEM, shared_bytes=None, tcp_bytes=None), Path("runs")))
    assert not {"/dev/shm", "tcp"} & set(found)


@pytest.mark.skipif(sys.platform != "linux", reason="labs need Linux")
@pytest.mark.parametrize(
    ("program", "lab"),
    [
        ("print('{\"as_user\": true}')", Lab(as_user=True)),
        ('print(\'{"problem": "no", "mend": "try"}\')', Lab("no", "try")),
        ("raise ImportError('no torch')", Lab("ImportError: no torch")),
        ("print(7)", Lab("its trial ended with 0")),
        ("import os; os.kill(os.getpid(), 9)", Lab("its trial ended with -9")),
    ],
)
def test_whatever_becomes_of_the_trial_of_a_lab_is_said(program: str, lab: Lab) -> None:
    assert try_lab((sys.executable, "-c", program)) == lab


def test_this_system_can_be_looked_at(tmp_path: Path) -> None:
    found = by_check(check_system(System.here(tmp_path / "no" / "such" / "folder" / "yet"), tmp_path))
    assert {"disk", "open files", "lab"} <= set(found)


def test_a_file_where_the_folder_should_be(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("")
    assert not System.here(tmp_path / "runs").writable
