from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.conftest import shoal, tiny_job
from shoal.launch.prepare import prepare
from shoal.report.compare import compare
from shoal.report.measured import common, length, measured, run_folder, union
from shoal.worker import RunFolder

__all__ = ["shoal", "tiny_job"]

intervals = st.lists(
    st.tuples(st.integers(0, 40), st.integers(0, 40)).map(lambda pair: tuple(sorted(pair))), max_size=12
)


def cells(found: Sequence[tuple[float, float]]) -> set[int]:
    """The unit cells that whole-numbered intervals cover: the oracle."""
    return {cell for start, stop in found for cell in range(int(start), int(stop))}


@given(intervals, intervals)
def test_unions_and_what_they_have_in_common_against_a_grid(a: Any, b: Any) -> None:
    for found in (union(a), union(b)):
        assert all(stop < start for (_, stop), (start, _) in itertools.pairwise(found))
    assert cells(union(a)) == cells(a) and length(union(a)) == len(cells(a))
    assert cells(common(union(a), union(b))) == cells(a) & cells(b)


def made(
    job: Path,
    runs: Path,
    steps: Mapping[str, Sequence[float]],
    spans: Mapping[str, Sequence[Mapping[str, Any]]],
    *,
    loss: float = 2.0,
    world: str | None = "processes",
) -> RunFolder:
    """A run folder in which each peer's steps ended at these times."""
    folder = prepare(job, runs=runs, workers=len(steps)).folder
    for peer, ends in steps.items():
        events = [{"at": 0.0, "kind": "session", "session": "s"}]
        events += [
            {"at": at, "kind": "step", "step": n, "loss": float.hex(loss * 4), "weight": 4.0}
            for n, at in enumerate(ends)
        ]
        folder.events(peer).write_text("".join(json.dumps(event) + "\n" for event in events))
        folder.spans(peer).write_text("".join(json.dumps(span) + "\n" for span in spans.get(peer, ())))
    if world is not None:
        folder.summary.write_text(json.dumps({"world": world, "held_out_loss": 1.5}))
    return folder


def span(lane: str, start: float, stop: float, **args: Any) -> dict[str, Any]:
    return {"lane": lane, "name": "x", "start": start, "stop": stop, "args": args}


def test_figures_of_a_made_run(tiny_job: Path, tmp_path: Path) -> None:
    """Two timed steps of one peer, from 3 s to 5 s; what lies outside does not count, overlaps count once."""
    spans = [
        span("compute", 0.0, 2.5),
        span("compute", 3.0, 3.5),
        span("compute", 3.4, 3.8),
        span("update", 4.0, 4.2),
        span("send", 3.7, 4.5, bytes=1000),
        span("send", 2.0, 2.5, bytes=77),
        span("wait", 4.1, 4.4),
        span("wait", 4.9, 6.0),
    ]
    found = measured(made(tiny_job, tmp_path, {"worker-0": [1, 2, 3, 4.5, 5]}, {"worker-0": spans}))
    assert (found.world, found.simulated, found.steps) == ("processes", False, 5)
    assert found.step_s == (1.5, 0.5) and found.peer_step_s == {"worker-0": 1.0}
    assert found.lane_s == pytest.approx({"compute": 0.4, "update": 0.1, "send": 0.4, "wait": 0.2})
    assert found.exposed_s == pytest.approx((2.0 - 0.8 - 0.2) / 2)
    assert found.hidden_s == pytest.approx((0.1 + 0.2) / 2)  # sending from 3.7 to 3.8 and 4.0 to 4.2
    assert found.sent_bytes == 500
    assert found.loss == dict.fromkeys(range(5), 2.0) and found.held_out_loss == 1.5
    assert found.notes == ()


def test_what_is_missing_or_torn_is_said_and_the_rest_compared(tiny_job: Path, tmp_path: Path) -> None:
    """Case I4: a killed run, one peer without a log, one with a torn line and no spans."""
    ends = [1.0, 2.0, 3.0, 4.0, 5.0]
    folder = made(tiny_job, tmp_path, {"worker-0": ends, "worker-1": ends, "worker-2": ends}, {}, world=None)
    folder.events("worker-1").unlink()
    with folder.events("worker-2").open("a") as log:
        log.write('{"at": 6.0, "kind": "st')
    folder.spans("worker-0").write_text(
        json.dumps(span("compute", 3.5, 4.0)) + "\n" + json.dumps({"dropped": 7}) + "\n"
    )
    found = measured(folder)
    assert found.world == "unknown" and found.steps == 5 and set(found.peer_step_s) == {"worker-0", "worker-2"}
    assert found.lane_s == {"compute": 0.25}
    said = "\n".join(found.notes)
    for note in ("worker-1 logged no step", "worker-0 left out 7 spans", "worker-2 left no spans"):
        assert note in said


def test_a_run_too_short_to_time(tiny_job: Path, tmp_path: Path) -> None:
    found = measured(made(tiny_job, tmp_path, {"worker-0": [1.0, 2.0]}, {}))
    assert found.step_s == () and found.median_step_s is None and "nothing to time" in found.notes[0]
    text = "\n".join(compare(found, found).lines())
    assert "–" in text and "equal to the bit at all 2 common steps" in text


def test_differences_are_named(tiny_job: Path, tmp_path: Path) -> None:
    slow = {"worker-0": [1.0, 2, 3, 4, 5], "worker-1": [1.0, 2, 3, 4.2, 5.4]}
    a = measured(made(tiny_job, tmp_path / "a", slow, {}, world="timing"))
    tiny_job.write_text(tiny_job.read_text() + "\n[optimizer]\nlr = 0.5\n")
    twice = {peer: [2 * at for at in ends] for peer, ends in slow.items()}
    b = measured(made(tiny_job, tmp_path / "b", twice, {}, loss=2.5))
    found = compare(a, b)
    by_name = {row.name: row for row in found.rows}
    assert by_name["step time, median"].ratio == pytest.approx(2.0)
    assert found.worst_loss == (0.5, 0) and found.common_steps == 5
    assert list(found.job) == ["optimizer.lr"] and found.job["optimizer.lr"][1] == 0.5
    text = "\n".join(found.lines())
    assert "timing (simulated)" in text and "processes (measured)" in text
    assert "slowest worker of A: worker-1, 9% above the median" in text
    assert json.loads(json.dumps(found.to_json()))["worst_loss"] == [0.5, 0]


def test_the_newest_run_of_a_job_or_a_clear_complaint(
    shoal: Callable[..., Any], tiny_job: Path, tmp_path: Path
) -> None:
    for n in (1, 2):
        made(tiny_job, Path("runs"), {"worker-0": [1.0, 2, 3, 4, 4 + n]}, {})
    assert run_folder(Path("runs/tiny")).root == Path("runs/tiny/2")
    ran = shoal("compare", "runs/tiny/1", "runs/tiny", "--json")
    assert ran.status == 0
    assert {row["name"]: row["ratio"] for row in json.loads(ran.out)["rows"]}["step time, median"] == 1.5
    assert shoal("compare", "runs/tiny", "runs/none").status == 2


def test_a_rehearsal_equals_itself(shoal: Callable[..., Any], tiny_job: Path) -> None:
    for _ in range(2):
        assert shoal("simulate", tiny_job).status == 0
    found = json.loads(shoal("compare", "runs/tiny-virtual/1", "runs/tiny-virtual/2", "--json").out)
    assert found["worst_loss"][0] == 0.0 and found["common_steps"] == 6 and found["job"] == {}
    assert {row["ratio"] for row in found["rows"]} <= {1.0, None}
    assert found["a"]["sent_bytes"] > 0
