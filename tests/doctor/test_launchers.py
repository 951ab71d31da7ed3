from __future__ import annotations

import pytest

from doctor.machines import by_check
from shoal.doctor import check_launcher

WHERE = {"MASTER_ADDR": "a", "MASTER_PORT": "1"}


def test_without_a_launcher_there_is_nothing_to_say() -> None:
    assert list(check_launcher({})) == []
    assert list(check_launcher({"SLURM_PROCID": "0", "SLURM_NTASKS": "1"})) == []


@pytest.mark.parametrize(
    ("environment", "state", "text"),
    [
        ({"RANK": "0", "WORLD_SIZE": "2"}, "fail", "not MASTER_ADDR, MASTER_PORT"),
        ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "a"}, "fail", "not MASTER_PORT"),
        ({**WHERE, "RANK": "0"}, "fail", "would train alone"),
        ({"WORLD_SIZE": "2"}, "fail", "would train alone"),
        ({"MASTER_ADDR": "oslo"}, "warn", "this machine alone"),
        ({"MASTER_ADDR": "oslo", "RANK": ""}, "warn", "this machine alone"),
        ({**WHERE, "RANK": "2", "WORLD_SIZE": "2"}, "fail", "no such rank"),
        ({**WHERE, "RANK": "-1", "WORLD_SIZE": "2"}, "fail", "not a number"),
        ({**WHERE, "MASTER_PORT": "x", "RANK": "0", "WORLD_SIZE": "2"}, "fail", "not a port"),
        ({**WHERE, "MASTER_PORT": "0", "RANK": "0", "WORLD_SIZE": "2"}, "fail", "not a port"),
        ({**WHERE, "RANK": "1", "WORLD_SIZE": "2"}, "ok", "rank 1 of 2, meeting at a:1"),
        ({"SLURM_PROCID": "1", "SLURM_NTASKS": "4"}, "warn", "4 tasks"),
    ],
)
def test_variables(environment: dict[str, str], state: str, text: str) -> None:
    """Half of them set means that workers train alone, each happily (cases A8, B3)."""
    found = by_check(check_launcher(environment))["launcher"]
    assert (found.state, text in found.text) == (state, True), found
