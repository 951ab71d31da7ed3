"""Progress as lines, as JSON and as figures. The clock is handed in, so nothing here depends on time."""

from __future__ import annotations

import io
import json

from rich.console import Console

from shoal.report import JsonLines, Live, Plain, Progress, display
from shoal.worker import Report

REPORTS = [
    Report(
        kind="start",
        fields={
            "peers": ["a", "b"],
            "steps": 40,
            "first_step": 0,
            "parameters": 1_034_240,
            "tokens_per_step": 4096,
            "baselines": {"bigram": 2.42, "unigram": 3.24},
        },
    ),
    Report(
        kind="step",
        fields={
            "step": 10,
            "loss": 3.25,
            "tokens_per_s": 12_345.0,
            "sent_bytes": 1_234_567,
            "received_bytes": 2_000_000,
            "seconds": 3.3,
        },
    ),
    Report(
        kind="eval",
        fields={"step": 10, "loss": 3.0, "consensus": 0.0125, "baselines": {"bigram": 2.42, "unigram": 3.24}},
    ),
    Report(kind="checkpoint", fields={"step": 10, "path": "runs/job/1/checkpoints/step-00000010"}),
    Report(kind="stopping", fields={"step": 12}),
    Report(kind="sample", fields={"text": "def f():\n    return 1"}),
    Report(kind="done", fields={"step": 12, "seconds": 4.0, "loss": 2.9}),
]


def _ticking() -> Progress:
    times = iter(range(0, 1000, 10))
    return Progress(clock=lambda: float(next(times)))


def _play(shown: Plain | JsonLines | Live) -> None:
    with shown:
        for report in REPORTS:
            shown.progress(report)
            shown(report)


def test_plain_lines() -> None:
    out = io.StringIO()
    _play(Plain(_ticking(), Console(file=out, width=60)))
    assert out.getvalue().splitlines() == [
        "2 workers, 1,034,240 parameters, 40 steps of 4,096 tokens",
        "step 10/40  loss 3.2500  12.3k tokens/s  sent 1.23 MB  received 2 MB  1:00 left",
        "step 10/40  held-out loss 3.0000  (unigram 3.2400, bigram 2.4200)  consensus distance 0.0125",
        "step 10/40  checkpoint runs/job/1/checkpoints/step-00000010",
        "asked to stop: all workers have stopped after step 12",
    ]


def test_json_lines_are_valid_even_where_the_loss_is_not() -> None:
    out = io.StringIO()
    shown = JsonLines(_ticking(), out)
    shown.note("not for scripts")
    _play(shown)
    shown(Report(kind="eval", fields={"step": 1, "loss": float("nan")}))
    lines = [json.loads(line, parse_constant=_refuse) for line in out.getvalue().splitlines()]
    assert [line["kind"] for line in lines] == [*(r.kind for r in REPORTS), "eval"]
    assert lines[1]["sent_bytes"] == 1_234_567 and lines[-1]["loss"] is None


def test_live_display_keeps_what_matters_and_redraws_the_rest() -> None:
    out = io.StringIO()
    console = Console(file=out, width=100, force_terminal=True, color_system=None)
    shown = display(_ticking(), console=console)
    assert isinstance(shown, Live)
    _play(shown)
    text = out.getvalue()
    assert "held-out loss 3.0000" in text and "step 10/40  loss" not in text
    console.print(shown._render())
    assert "step 12/40" in out.getvalue() and "12.3k tokens/s" in out.getvalue()


def test_time_left_needs_a_step_and_counts_from_the_resumed_one() -> None:
    now = [0.0]
    progress = Progress(clock=lambda: now[0])
    assert progress.time_left is None
    progress(Report(kind="start", fields={**REPORTS[0].fields, "first_step": 30}))
    assert progress.time_left is None
    now[0] = 4.0
    progress(Report(kind="step", fields={**REPORTS[1].fields, "step": 34}))
    assert progress.time_left == 6.0


def _refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is not JSON")
