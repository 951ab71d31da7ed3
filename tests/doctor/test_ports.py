from __future__ import annotations

import os
import socket
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from doctor.machines import by_check
from shoal.doctor import Finding, check_ports
from shoal.doctor.ports import PortState, port_state


def judged(environment: dict[str, str], states: dict[int, PortState] | None = None, needed: int = 1) -> list[Finding]:
    """Where `states` says nothing of a port it is free."""
    return list(
        check_ports(
            environment,
            needed=needed,
            look=lambda port: (states or {}).get(port, "free"),
            owner=lambda port: f"process {port} (test)",
        )
    )


@pytest.mark.parametrize(
    ("environment", "states", "needed", "state", "text"),
    [
        ({"SHOAL_PORT_RANGE": "40000"}, {}, 1, "fail", "not a range"),
        ({"SHOAL_PORT_RANGE": "40010-40000"}, {}, 1, "fail", "not a range"),
        ({"SHOAL_PORT_RANGE": "40000-40050"}, {}, 3, "ok", "51 ports"),
        ({"SHOAL_PORT_RANGE": "40000-40001"}, {}, 3, "fail", "2 of the 3 ports"),
        ({"SHOAL_PORT_RANGE": "40000-40001", "LOCAL_WORLD_SIZE": "3"}, {}, 1, "fail", "2 of the 3 ports"),
        ({"SHOAL_PORT_RANGE": "40000-40003"}, {40001: "taken"}, 3, "ok", "3 ports"),
        ({"SHOAL_PORT_RANGE": "40000-40002"}, {40001: "taken"}, 3, "fail", "40001 is held by process 40001 (test)"),
        ({"SHOAL_PORT_RANGE": "80-81"}, {80: "forbidden", 81: "forbidden"}, 1, "fail", "below 1024"),
        ({"RANK": "0", "MASTER_PORT": "4000"}, {4000: "taken"}, 1, "fail", "held by process 4000"),
        ({"RANK": "0", "MASTER_PORT": "4000"}, {}, 1, "ok", "is free"),
        ({"RANK": "0", "MASTER_PORT": "80"}, {80: "forbidden"}, 1, "fail", "may not listen"),
        (
            {"RANK": "0", "MASTER_PORT": "4000", "TORCHELASTIC_USE_AGENT_STORE": "True"},
            {4000: "taken"},
            1,
            "ok",
            "kept by the launcher",
        ),
        (
            {"RANK": "0", "MASTER_PORT": "4000", "TORCHELASTIC_USE_AGENT_STORE": "True"},
            {},
            1,
            "warn",
            "nobody listens",
        ),
    ],
)
def test_traps(environment: dict[str, str], states: dict[int, PortState], needed: int, state: str, text: str) -> None:
    """Cases A3 and A6."""
    found = by_check(judged(environment, states, needed))["ports"]
    assert (found.state, text in found.text) == (state, True), found


def test_where_nothing_is_set_or_another_worker_keeps_the_store_nothing_is_said() -> None:
    assert judged({}) == []
    assert judged({"RANK": "1", "MASTER_PORT": "4000"}, {4000: "taken"}) == []
    assert judged({"RANK": "0", "MASTER_PORT": "99999"}) == []


@given(taken=st.sets(st.integers(40000, 40019)), needed=st.integers(1, 25))
def test_a_range_will_do_if_and_only_if_enough_of_it_is_free(taken: set[int], needed: int) -> None:
    states: dict[int, PortState] = dict.fromkeys(taken, "taken")
    (found,) = judged({"SHOAL_PORT_RANGE": "40000-40019"}, states, needed)
    assert found.state == ("ok" if 20 - len(taken) >= needed else "fail")


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_a_real_port_that_is_taken_and_by_whom(host: str) -> None:
    with socket.create_server((host, 0)) as server:
        port = server.getsockname()[1]
        assert port_state(port) == "taken"
        found = by_check(check_ports({"SHOAL_PORT_RANGE": f"{port}-{port}"}))["ports"]
    assert found.state == "fail"
    if sys.platform == "linux":
        assert f"process {os.getpid()}" in found.text
    assert port_state(port) == "free"
