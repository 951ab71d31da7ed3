from __future__ import annotations

import pytest

from doctor.machines import by_check
from shoal.doctor import check_clock
from shoal.doctor.clock import Clock


@pytest.mark.parametrize(
    ("clock", "state"),
    [
        (Clock(now=2e9, installed=1.9e9, synchronised=True), "ok"),
        (Clock(now=1e9, installed=1.9e9, synchronised=True), "fail"),
        (Clock(now=1.9e9 - 3600, installed=1.9e9, synchronised=True), "ok"),  # a time zone mistaken when installing
        (Clock(now=2e9, installed=1.9e9, synchronised=False), "warn"),
        (Clock(now=2e9, installed=1.9e9, synchronised=None), "note"),
    ],
)
def test_clocks(clock: Clock, state: str) -> None:
    assert by_check(check_clock(clock))["clock"].state == state


def test_this_clock_can_be_looked_at() -> None:
    clock = Clock.here()
    assert clock.now > clock.installed - 86400
