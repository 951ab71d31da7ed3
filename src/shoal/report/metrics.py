"""Metrics of a run on disk: ``metrics.jsonl``, and TensorBoard's event files where the job asks for them."""

from __future__ import annotations

import json
import os
from types import TracebackType
from typing import Any, TextIO

from shoal.errors import UserError
from shoal.report.text import to_json
from shoal.worker import Report, RunFolder

_KEPT = ("step", "eval")


class Metrics:
    """Writes one JSON object per ``step`` and ``eval`` report, with its kind.

    A run that continues from a checkpoint does some steps again: when its ``start`` report comes, the lines of those
    steps are dropped, so every step is in the file once.

    Args:
        folder: gets ``metrics.jsonl`` and, with `tensorboard`, ``tensorboard/``.
        resume: keep what is there, up to the step that the run resumes from.

    Raises:
        UserError: TensorBoard is asked for and not installed.
    """

    def __init__(self, folder: RunFolder, *, tensorboard: bool = False, resume: bool = False) -> None:
        self._folder, self._resume = folder, resume
        self._file: TextIO | None = None
        self._writer_class = _summary_writer() if tensorboard else None
        self._writer: Any = None

    def __enter__(self) -> Metrics:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._file is not None:
            self._file.close()
        if self._writer is not None:
            self._writer.close()

    def __call__(self, report: Report) -> None:
        if report.kind == "start":
            self._open(report.fields["first_step"])
        elif report.kind in _KEPT:
            if self._file is None:
                self._open(0)
            assert self._file is not None
            self._file.write(to_json({"kind": report.kind, **report.fields}) + "\n")
            if self._writer is not None:
                self._to_tensorboard(report)

    def _open(self, first_step: int) -> None:
        path = self._folder.metrics
        kept = [line for line in _lines(path) if _step_of(line) <= first_step] if self._resume else []
        aside = path.with_name(path.name + ".tmp")
        aside.write_bytes(b"".join(line + b"\n" for line in kept))
        os.replace(aside, path)
        self._file = path.open("a", encoding="utf-8", buffering=1)
        if self._writer_class is not None:
            purge = {"purge_step": first_step + 1} if self._resume else {}
            self._writer = self._writer_class(log_dir=str(self._folder.root / "tensorboard"), **purge)

    def _to_tensorboard(self, report: Report) -> None:
        step = report.fields["step"]
        where = "train" if report.kind == "step" else "held-out"
        for name, value in report.fields.items():
            if name != "step" and isinstance(value, int | float):
                self._writer.add_scalar(f"{where}/{name}", value, step)


def _summary_writer() -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise UserError(
            "TensorBoard is not installed",
            key="run.tensorboard",
            value=True,
            mend="install shoal[tensorboard], or write false",
        ) from error
    return SummaryWriter


def _lines(path: Any) -> list[bytes]:
    return path.read_bytes().splitlines() if path.exists() else []


def _step_of(line: bytes) -> float:
    """The step of a line; a torn line is of no step that could be kept."""
    try:
        return json.loads(line)["step"]
    except (ValueError, KeyError, TypeError):
        return float("inf")
