from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


def test_a_machine_with_its_job(shoal: Callable[..., Any], tiny_job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for key in ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "SHOAL_INTERFACE", "SHOAL_PORT_RANGE"):
        monkeypatch.delenv(key, raising=False)
    ran = shoal("doctor", tiny_job, "--json")
    found = [json.loads(line) for line in ran.out.splitlines()]
    assert {"torch", "address", "disk", "clock", "job"} <= {finding["check"] for finding in found}
    assert ran.status == (1 if any(finding["state"] == "fail" for finding in found) else 0)


def test_what_will_go_wrong_ends_with_one(shoal: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_PORT_RANGE", "many")
    ran = shoal("doctor")
    assert ran.status == 1 and "fail  ports" in ran.out


def test_nobody_at_the_other_end(shoal: Callable[..., Any]) -> None:
    ran = shoal("doctor", "--peer", "127.0.0.1:1")
    assert ran.status == 1 and "refused the connection" in ran.out


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--peer", "[::1"], "brackets"),
        (["--listen", "99999"], "not a port"),
        (["--listen", "1", "--peer", "oslo"], "leave out --peer"),
    ],
)
def test_mistakes(shoal: Callable[..., Any], options: list[str], problem: str) -> None:
    ran = shoal("doctor", *options)
    assert ran.status == 2 and problem in ran.err


def test_listening_says_what_to_type_and_ends_by_itself(shoal: Callable[..., Any]) -> None:
    ran = shoal("doctor", "--listen", "127.0.0.1:29688", "--for", "0.2")
    assert ran.status == 0 and "shoal doctor --peer 127.0.0.1:29688" in ran.out
