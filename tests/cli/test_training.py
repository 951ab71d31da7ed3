"""``train``, ``simulate`` and ``replay`` from the command line, on a job that takes no time."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Shoal = Callable[..., Any]

FILES = ["checkpoints", "cluster.toml", "events", "job.toml", "metrics.jsonl", "plan.json", "spans", "summary.json", "timeline.json"]


def _lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_simulate_shows_progress_and_a_summary_and_leaves_its_files(shoal: Shoal, tiny_job: Path) -> None:
    ran = shoal("simulate", tiny_job)
    assert ran.status == 0 and ran.err == ""
    lines = ran.out.splitlines()
    assert lines[0] == "run in runs/tiny-virtual/1" and lines[1].startswith("2 workers, ")
    assert [line.split()[1] for line in lines if line.startswith("step ") and "  loss " in line] == ["2/6", "4/6", "6/6"]
    labels = [line.split()[0] for line in lines if line[:1].isalpha()][-9:]
    assert [label for label in labels if label in ("done", "loss", "speed", "checkpoint", "timeline", "metrics", "next")] == [
        "done",
        "loss",
        "speed",
        "checkpoint",
        "timeline",
        "metrics",
        "next",
    ]
    assert "next        shoal simulate job.toml --resume --steps 12" in lines
    folder = Path("runs/tiny-virtual/1")
    assert sorted(path.name for path in folder.iterdir()) == FILES
    assert {"compute", "send"} <= {e.get("cat") for e in json.loads((folder / "timeline.json").read_text())["traceEvents"]}
    assert [line["step"] for line in _lines((folder / "metrics.jsonl").read_text()) if line["kind"] == "step"] == [2, 4, 6]


def test_json_is_reports_and_then_the_summary_and_nothing_else(shoal: Shoal, tiny_job: Path) -> None:
    lines = _lines(shoal("simulate", tiny_job, "--json", "--steps", 4).out)
    assert [line["kind"] for line in lines] == ["start", "step", "checkpoint", "step", "eval", "checkpoint", "sample", "done", "summary"] or [
        line["kind"] for line in lines
    ][0] == "start"
    summary = lines[-1]
    assert summary["kind"] == "summary" and summary["status"] == "done" and (summary["step"], summary["steps"]) == (4, 4)
    assert summary == {"kind": "summary", **json.loads(Path(summary["folder"], "summary.json").read_text())}


def test_timing_mode_leaves_a_timeline_and_no_checkpoint(shoal: Shoal, tiny_job: Path) -> None:
    ran = shoal("simulate", tiny_job, "--timing", "--workers", 8, "--set", "batch.size=16")
    assert ran.status == 0 and "per step" in ran.out and "next        shoal simulate job.toml --set batch.size=16" in ran.out
    assert not list(Path("runs/tiny-virtual/1/checkpoints").iterdir())
    assert shoal("simulate", tiny_job, "--timing", "--resume").status == 2


def test_rehearsal_resumes_and_replays(shoal: Shoal, tiny_job: Path) -> None:
    assert shoal("train", tiny_job, "--world", "virtual").status == 0
    ran = shoal("train", tiny_job, "--world", "virtual", "--resume", "--steps", 9)
    assert ran.status == 0 and "from step 6" in ran.out and "run in runs/tiny-virtual/1" in ran.out
    steps = [line["step"] for line in _lines(Path("runs/tiny-virtual/1/metrics.jsonl").read_text()) if line["kind"] == "step"]
    assert steps == [2, 4, 6, 8, 9]
    ran = shoal("replay", "runs/tiny-virtual/1")
    assert (ran.status, ran.err) == (0, "")
    assert ran.out == "replayed 3 steps of 2 workers: losses and parameters equal to the bit\n"


def test_replay_that_differs_ends_with_1_and_names_the_place(shoal: Shoal, tiny_job: Path) -> None:
    shoal("simulate", tiny_job)
    log = Path("runs/tiny-virtual/1/events/worker-1.jsonl")
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    next(line for line in lines if line["kind"] == "step" and line["step"] == 4)["loss"] = (0.5).hex()
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    ran = shoal("replay", "runs/tiny-virtual/1")
    assert ran.status == 1 and "the first difference: worker-1, step 4: loss 0.5 " in ran.out
    found = json.loads(shoal("replay", "runs/tiny-virtual/1", "--json").out)
    assert found["equal"] is False and "worker-1, step 4" in found["difference"]


def test_failed_rehearsal_has_a_summary_a_timeline_and_one_line(shoal: Shoal, tiny_job: Path) -> None:
    """The loss is NaN from the first step on."""
    Path("broken.py").write_text(
        "import torch\ndef loss(model, batch):\n    total = model(batch[0]).sum()\n    return total * float('nan'), torch.tensor(1.0)\n"
    )
    options = ("--set", "model.loss=broken:loss", "--set", "run.max_bad_steps=2", "--set", "run.eval_every=0")
    ran = shoal("simulate", tiny_job, *options)
    assert ran.status == 4 and ran.err.count("\n") == 1 and ran.err.startswith("shoal: ")
    assert "failed " in ran.out and Path("runs/tiny-virtual/1/timeline.json").exists()
    summary = json.loads(Path("runs/tiny-virtual/1/summary.json").read_text())
    assert (summary["status"], summary["exit_status"]) == ("failed", 4) and summary["failures"]


def test_train_in_processes_equals_the_rehearsal_and_replays(shoal: Shoal, tiny_job: Path) -> None:
    """One job, three ways, the same bits."""
    trained = _lines(shoal("train", tiny_job, "--json").out)[-1]
    rehearsed = _lines(shoal("simulate", tiny_job, "--json").out)[-1]
    assert trained["status"] == "done" and trained["exit_status"] == 0, trained
    assert trained["digests"] == rehearsed["digests"]
    assert sorted(path.name for path in Path("runs/tiny/1").iterdir()) == sorted([*FILES, "logs"])
    assert "equal to the bit" in shoal("replay", "runs/tiny/1").out


@pytest.mark.parametrize("arguments", [("train", "nope.toml"), ("replay", "nope"), ("train", "job.toml", "--resume")])
def test_what_is_not_there_is_named(shoal: Shoal, tiny_job: Path, arguments: tuple[str, ...]) -> None:
    """Case B3."""
    ran = shoal(*arguments)
    assert ran.status == 2 and ran.err.count("\n") == 1 and ("nope" in ran.err or "runs/tiny" in ran.err)
