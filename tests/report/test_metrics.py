from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from shoal.errors import UserError
from shoal.report import Metrics
from shoal.worker import Report, RunFolder


def _start(first_step: int = 0) -> Report:
    return Report(kind="start", fields={"first_step": first_step})


def _step(step: int, loss: float = 1.0) -> Report:
    return Report(kind="step", fields={"step": step, "loss": loss})


def _steps(folder: RunFolder) -> list[int]:
    return [json.loads(line)["step"] for line in folder.metrics.read_text().splitlines()]


def test_one_line_per_step_and_evaluation(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path).make()
    with Metrics(folder) as metrics:
        for report in (_start(), _step(10), Report(kind="eval", fields={"step": 10, "loss": float("nan")}), _step(20)):
            metrics(report)
        metrics(Report(kind="sample", fields={"text": "x"}))
    lines = [json.loads(line) for line in folder.metrics.read_text().splitlines()]
    assert [(line["kind"], line["step"]) for line in lines] == [("step", 10), ("eval", 10), ("step", 20)]
    assert lines[1]["loss"] is None


def test_resumed_run_has_every_step_once(tmp_path: Path) -> None:
    """Steps after the checkpoint are done again; a torn last line of a killed run goes."""
    folder = RunFolder(tmp_path).make()
    with Metrics(folder) as metrics:
        for report in (_start(), _step(10), _step(20), _step(30)):
            metrics(report)
    with folder.metrics.open("a") as file:
        file.write('{"kind": "step", "st')
    with Metrics(folder, resume=True) as metrics:
        for report in (_start(20), _step(30), _step(40)):
            metrics(report)
    assert _steps(folder) == [10, 20, 30, 40]


def test_fresh_run_starts_an_empty_file(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path).make()
    folder.metrics.write_text('{"kind": "step", "step": 5}\n')
    with Metrics(folder) as metrics:
        metrics(_start())
        metrics(_step(1))
    assert _steps(folder) == [1]


def test_tensorboard_gets_the_same_figures(tmp_path: Path) -> None:
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    folder = RunFolder(tmp_path).make()
    with Metrics(folder, tensorboard=True) as metrics:
        for report in (_start(), _step(1, 3.0), _step(2, 2.5), Report(kind="eval", fields={"step": 2, "loss": 2.75})):
            metrics(report)
    events = reader.EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("train/loss")] == [(1, 3.0), (2, 2.5)]
    assert [(e.step, e.value) for e in events.Scalars("held-out/loss")] == [(2, 2.75)]


def test_missing_tensorboard_is_said_before_the_run_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(UserError, match=r"install shoal\[tensorboard\]"):
        Metrics(RunFolder(tmp_path).make(), tensorboard=True)
