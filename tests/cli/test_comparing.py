from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Shoal = Callable[..., Any]


def test_two_rehearsals_of_one_job_are_the_same(shoal: Shoal, tiny_job: Path) -> None:
    for _ in range(2):
        assert shoal("simulate", tiny_job).status == 0
    ran = shoal("compare", "runs/tiny-virtual/1", "runs/tiny-virtual/2", "--json")
    assert ran.status == 0
    found = json.loads(ran.out)
    assert found["worst_loss"] == {"apart": 0.0, "step": 0} and found["job"] == found["cluster"] == {}
    assert len(found["losses"]) == 6 and found["timed_steps"] == [3, 4, 5]
    ratios = [row["ratio"] for row in found["rows"] if row["unit"] != "nats"]
    assert len(ratios) > 8 and set(ratios) == {1.0}
    assert {row["difference"] for row in found["rows"] if row["unit"] == "nats"} == {0.0}
    figures = found["a"]["figures"]
    assert figures["step_s"]["50"] > 0 and figures["sent_bytes"] == figures["received_bytes"] > 0
    parts = figures["computing_s"] + figures["exposed_s"] + figures["other_s"]
    assert parts == pytest.approx(sum(worker["step_s"] for worker in figures["workers"].values()) / 2)
    text = shoal("compare", "runs/tiny-virtual/1", "runs/tiny-virtual").out
    assert "losses: equal to the bit at all 6 common steps" in text


def test_nothing_of_a_worker_is_hidden_behind_the_wait_for_the_end(shoal: Shoal, tiny_job: Path) -> None:
    """All but the first worker wait for the end of the run from its beginning; equal workers have equal figures."""
    assert shoal("simulate", tiny_job).status == 0
    found = json.loads(shoal("compare", "runs/tiny-virtual", "runs/tiny-virtual", "--json").out)
    first, second = found["a"]["figures"]["workers"].values()
    assert first["exposed_s"] == pytest.approx(second["exposed_s"])
    assert found["a"]["figures"]["lane_s"]["wait"] == 0  # a collective in virtual time is one span of sending


def test_a_prediction_and_a_training_stay_in_columns_of_their_own(shoal: Shoal, tiny_job: Path) -> None:
    assert shoal("simulate", tiny_job, "--timing").status == 0
    assert shoal("train", tiny_job).status == 0
    ran = shoal("compare", "runs/tiny-virtual", "runs/tiny")
    assert ran.status == 0
    head = ran.out.splitlines()[0]
    assert head.split() == ["A:", "simulated", "B:", "measured", "B", "/", "A"]
    assert "losses: no step in common" in ran.out
    found = json.loads(shoal("compare", "runs/tiny-virtual", "runs/tiny", "--json").out)
    assert found["left_out"] == [3] and found["timed_steps"] == [4, 5]  # the training saved after three steps
    sent = next(row for row in found["rows"] if row["name"] == "sent per step")
    assert sent["ratio"] == pytest.approx(1.0, rel=0.02)


@pytest.mark.parametrize("folder", ["runs/nothing", "."])
def test_a_bad_folder_ends_with_2_and_one_line(shoal: Shoal, tiny_job: Path, folder: str) -> None:
    Path("job.toml").rename("elsewhere.toml")
    ran = shoal("compare", folder, folder)
    assert ran.status == 2 and ran.err.count("\n") == 1
    assert folder in ran.err and "name a folder like runs/job/1" in ran.err
