from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Shoal = Callable[..., Any]
VARIABLES = ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "SHOAL_INTERFACE", "SHOAL_PORT_RANGE")


@pytest.fixture(autouse=True)
def _nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for key in VARIABLES:
        monkeypatch.delenv(key, raising=False)


def test_a_machine_with_its_job(shoal: Shoal, tiny_job: Path) -> None:
    ran = shoal("doctor", tiny_job, "--json")
    found = [json.loads(line) for line in ran.out.splitlines()]
    assert {"torch", "address", "disk", "clock", "job"} <= {finding["check"] for finding in found}
    assert all(set(finding) == {"check", "state", "text", "mend"} for finding in found)
    assert ran.status == (1 if any(finding["state"] == "fail" for finding in found) else 0)


def test_what_will_go_wrong_ends_with_one(shoal: Shoal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_PORT_RANGE", "many")
    ran = shoal("doctor")
    assert ran.status == 1 and "fail  ports" in ran.out and "\x1b" not in ran.out


def test_where_workers_meet_decides(shoal: Shoal, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "the way to 127.0.0.1" in shoal("doctor", "--master", "127.0.0.1:29500").out
    monkeypatch.setenv("MASTER_ADDR", "no-such-host.invalid")
    ran = shoal("doctor")
    assert ran.status == 1 and "no-such-host.invalid, where the workers meet, has no address" in ran.out


def test_nobody_at_the_other_end(shoal: Shoal) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    ran = shoal("doctor", "--peer", f"127.0.0.1:{port}")
    assert ran.status == 1 and "refused the connection" in ran.out


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--peer", "[::1"], "brackets"),
        (["--peer", "oslo:0"], "not a port"),
        (["--listen", "99999"], "not a port"),
        (["--listen", "1", "--peer", "oslo"], "leave out --peer"),
        (["--for", "3"], "add --listen"),
        (["job.toml", "--peer", "oslo"], "JOB"),
        (["--master", "oslo", "--listen", "29600"], "--master"),
        (["--runs", "here", "--peer", "oslo"], "--runs"),
        (["--master", "oslo:x"], "--master"),
        (["no-such-job.toml"], "no-such-job.toml"),
    ],
)
def test_mistakes(shoal: Shoal, options: list[str], problem: str) -> None:
    ran = shoal("doctor", *options)
    assert ran.status == 2 and problem in ran.err and not ran.out


def start(*options: str) -> tuple[subprocess.Popen[str], dict[str, Any]]:
    """``shoal doctor --listen`` in a process of its own, when it is ready."""
    argv = [sys.executable, "-m", "shoal", "doctor", "--json", "--listen", *options]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, json.loads(process.stdout.readline())


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def test_a_listener_is_tested_and_ends_with_ctrl_c(shoal: Shoal) -> None:
    port = free_port()
    process, ready = start(f"127.0.0.1:{port}")
    try:
        assert ready["peers"] == [f"127.0.0.1:{port}"]
        ran = shoal("doctor", "--peer", ready["peers"][0], "--json")
        found = [json.loads(line) for line in ran.out.splitlines()]
        assert ran.status == 0 and {f["check"] for f in found} >= {"path", "clocks", "way back", "packets", "bandwidth"}
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (process.returncode, err) == (130, "")
    assert [json.loads(line)["text"] for line in out.splitlines()] == ["127.0.0.1 came", "127.0.0.1 is done"]


def test_listening_says_what_to_type_and_ends_by_itself(shoal: Shoal) -> None:
    port = free_port()
    ran = shoal("doctor", "--listen", f"127.0.0.1:{port}", "--for", "0.2")
    assert ran.status == 0 and f"shoal doctor --peer 127.0.0.1:{port}\n" in ran.out
    ran = shoal("doctor", "--listen", str(port), "--for", "0.2")
    assert ran.status == 0 and "shoal doctor --peer " in ran.out and "0.0.0.0" not in ran.out
