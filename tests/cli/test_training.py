"""``train``, ``simulate`` and ``replay`` from the command line, on a job that takes no time."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Shoal = Callable[..., Any]

FILES = ["checkpoints", "cluster.toml", "events", "job.toml", "metrics.jsonl", "plan.json", "spans"]
FILES += ["summary.json", "timeline.json"]
BROKEN_LOSS = """
import torch
def loss(model, batch):
    return model(batch[0]).sum() * float("nan"), torch.tensor(1.0)
"""
GOLDEN = """\
run in runs/tiny-virtual/1: all-reduce, 1 thread per worker
2 workers, # parameters, 6 steps of 64 tokens
step 2/6  loss #  # tokens/s  sent # kB  received # kB  # left
step 3/6  checkpoint runs/tiny-virtual/1/checkpoints/step-00000003
step 4/6  loss #  # tokens/s  sent # kB  received # kB  # left
step 6/6  loss #  # tokens/s  sent # kB  received # kB  # left
step 6/6  checkpoint runs/tiny-virtual/1/checkpoints/step-00000006
step 6/6  held-out loss #  (unigram #, bigram #)
done        6 of 6 steps in # of virtual time, 2 workers
loss        held-out #, training # nats per token
            not yet below the corpus's unigram # and bigram #: it knows less than how often each token occurs
speed       # tokens/s, # kB sent, # kB received
checkpoint  runs/tiny-virtual/1/checkpoints/step-00000006
timeline    runs/tiny-virtual/1/timeline.json (open it at ui.perfetto.dev)
metrics     runs/tiny-virtual/1/metrics.jsonl
sample
next        shoal simulate job.toml --resume --steps 12
            shoal replay runs/tiny-virtual/1
"""


def _lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def _masked(text: str) -> str:
    """`text` without the sample, and # for every number that a machine or a clock decides."""
    text = re.sub(r"^ +\|.*\n", "", text, flags=re.MULTILINE)
    text = re.sub(r"(?<=in )[\d.]+ s|[\d.]+ s(?= left)", "#", text)
    return re.sub(r"\d+\.\d+k?|\d+,\d+(?= parameters)|\b\d+k?(?= tokens/s| kB)", "#", text)


def test_simulate_shows_progress_and_a_summary_and_leaves_its_files(shoal: Shoal, tiny_job: Path) -> None:
    ran = shoal("simulate", tiny_job)
    assert (ran.status, ran.err) == (0, "")
    assert sorted(_masked(ran.out).splitlines()) == sorted(GOLDEN.splitlines())
    folder = Path("runs/tiny-virtual/1")
    assert sorted(path.name for path in folder.iterdir()) == FILES
    lanes = {event.get("cat") for event in json.loads((folder / "timeline.json").read_text())["traceEvents"]}
    assert {"compute", "send"} <= lanes
    metrics = _lines((folder / "metrics.jsonl").read_text())
    assert [line["step"] for line in metrics if line["kind"] == "step"] == [2, 4, 6]


def test_json_is_reports_and_then_the_summary_and_nothing_else(shoal: Shoal, tiny_job: Path) -> None:
    lines = _lines(shoal("simulate", tiny_job, "--json", "--steps", 4).out)
    kinds = [line["kind"] for line in lines]
    assert (kinds[0], kinds[-2:]) == ("start", ["done", "summary"])
    assert sorted(kinds[1:-2]) == ["checkpoint", "checkpoint", "eval", "sample", "step", "step"]
    summary = lines[-1]
    assert (summary["status"], summary["step"], summary["steps"]) == ("done", 4, 4)
    assert summary == {"kind": "summary", **json.loads(Path(summary["folder"], "summary.json").read_text())}


def test_timing_mode_leaves_a_timeline_and_no_checkpoint(shoal: Shoal, tiny_job: Path) -> None:
    ran = shoal("simulate", tiny_job, "--timing", "--workers", 8, "--set", "batch.size=16")
    assert (
        ran.status == 0
        and "per step" in ran.out
        and "next        shoal simulate job.toml --set batch.size=16" in ran.out
    )
    assert not list(Path("runs/tiny-virtual/1/checkpoints").iterdir())
    assert shoal("simulate", tiny_job, "--timing", "--resume").status == 2


def test_rehearsal_resumes_and_replays(shoal: Shoal, tiny_job: Path) -> None:
    assert shoal("train", tiny_job, "--world", "virtual").status == 0
    ran = shoal("train", tiny_job, "--world", "virtual", "--resume", "--steps", 9)
    assert ran.status == 0 and "from step 6" in ran.out and "run in runs/tiny-virtual/1:" in ran.out
    steps = [
        line["step"] for line in _lines(Path("runs/tiny-virtual/1/metrics.jsonl").read_text()) if line["kind"] == "step"
    ]
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
    assert ran.status == 1 and "the first difference: worker-1, step 4: sum of losses 0.5 " in ran.out
    found = json.loads(shoal("replay", "runs/tiny-virtual/1", "--json").out)
    assert found["equal"] is False and "worker-1, step 4" in found["difference"]


def test_failed_rehearsal_has_a_summary_a_timeline_and_one_line(shoal: Shoal, tiny_job: Path) -> None:
    """The loss is NaN from the first step on."""
    Path("broken.py").write_text(BROKEN_LOSS)
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
