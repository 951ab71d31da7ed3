"""The summary of a run: golden texts, without anything that depends on the machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shoal.launch.messages import Failure
from shoal.report import Progress, Summary, summarize
from shoal.report.summary import verdict
from shoal.worker import Outcome, Report, RunFolder

BASELINES = {"bigram": 2.42, "unigram": 3.24}


def _progress(*, first_step: int = 0, step: int = 900, checkpoint: str | None = None) -> Progress:
    progress = Progress(clock=lambda: 0.0)
    progress(
        Report(
            kind="start",
            fields={
                "peers": ["a", "b"],
                "steps": 900,
                "first_step": first_step,
                "parameters": 10,
                "tokens_per_step": 4096,
                "baselines": BASELINES,
            },
        )
    )
    figures = {"tokens_per_s": 1.0, "sent_bytes": 1, "received_bytes": 1, "seconds": 10.0}
    progress(Report(kind="step", fields={"step": step, "loss": 2.5, **figures}))
    if checkpoint:
        progress(Report(kind="checkpoint", fields={"step": step, "path": checkpoint}))
    return progress


def _outcome(peer: str, *, step: int = 900, stopped: bool = False) -> Outcome:
    return Outcome(
        peer=peer,
        step=step,
        stopped=stopped,
        train_loss=2.1,
        eval_loss=2.18,
        digest="d" + peer,
        seconds=243.0,
        sent_bytes=60_000_000,
        received_bytes=60_000_000,
        checkpoint=f"runs/job/1/checkpoints/step-{step:08}",
    )


def _summary(progress: Progress, *outcomes: Outcome, status: int = 0, failures: tuple[Failure, ...] = ()) -> Summary:
    return summarize(
        progress,
        name="job",
        folder=RunFolder(Path("runs/job/1")),
        world="processes",
        outcomes={o.peer: o for o in outcomes},
        failures=failures,
        exit_status=status,
        command="shoal train job.toml",
    )


def test_summary_of_a_whole_run() -> None:
    progress = _progress()
    progress(Report(kind="sample", fields={"text": "def f(x):\n    return x"}))
    assert _summary(progress, _outcome("a"), _outcome("b")).lines() == [
        "done        900 of 900 steps in 4:03, 2 workers",
        "loss        held-out 2.1800, training 2.1000 nats per token",
        "            below the corpus's unigram 3.2400 and bigram 2.4200: it knows more than how often each token"
        " follows the one before it",
        "speed       15.2k tokens/s, 120 MB sent, 120 MB received",
        "checkpoint  runs/job/1/checkpoints/step-00000900",
        "timeline    runs/job/1/timeline.json (open it at ui.perfetto.dev)",
        "metrics     runs/job/1/metrics.jsonl",
        "sample",
        "            | def f(x):",
        "            |     return x",
        "next        shoal train job.toml --resume --steps 1800",
        "            shoal replay runs/job/1",
    ]


def test_sample_cannot_do_anything_to_the_terminal() -> None:
    progress = _progress()
    progress(Report(kind="sample", fields={"text": "\x1b[2Ja\rb\tc\x0bd"}))
    lines = _summary(progress, _outcome("a")).lines()
    assert "            | \N{REPLACEMENT CHARACTER}[2Ja\N{REPLACEMENT CHARACTER}b" in "\n".join(lines)
    assert all(line.isprintable() for line in lines)


def test_summary_of_a_stopped_run_says_how_to_go_on() -> None:
    """Case C9: Ctrl-C ends with 130 and says where the last checkpoint is."""
    ends = [_outcome(peer, step=120, stopped=True) for peer in "ab"]
    summary = _summary(_progress(step=100), *ends, status=130)
    lines = summary.lines()
    assert summary.status == "stopped" and lines[0] == "stopped     120 of 900 steps in 4:03, 2 workers"
    assert "checkpoint  runs/job/1/checkpoints/step-00000120" in lines
    assert lines[-2:] == ["next        shoal train job.toml --resume", "            shoal replay runs/job/1"]


def test_summary_of_a_failed_run_names_the_cause_first() -> None:
    failures = (
        Failure(peer="b", text="killed by signal 9 (SIGKILL) after step 12", code="died", exit_status=3),
        Failure(
            peer="a", text="peer 'b' at step 13: connection closed", code="peer-lost", exit_status=3, lost="b", step=13
        ),
    )
    summary = _summary(_progress(step=12), status=3, failures=failures)
    assert summary.status == "failed" and summary.checkpoint is None
    assert summary.lines()[0] == "failed      12 of 900 steps in 10 s, 2 workers"
    assert summary.complaints() == [
        "b: killed by signal 9 (SIGKILL) after step 12",
        "a: peer 'b' at step 13: connection closed",
    ]
    assert summary.next == ("shoal replay runs/job/1",)


def test_workers_that_say_the_same_are_one_line() -> None:
    failures = tuple(Failure(peer=peer, text="no such file", code="user", exit_status=2) for peer in "ab")
    summary = _summary(Progress(), status=2, failures=failures)
    assert summary.lines()[0] == "failed      before the first step, 2 workers"
    assert summary.complaints() == ["a, b: no such file"]


def test_figures_count_from_the_resumed_step() -> None:
    summary = _summary(_progress(first_step=600), _outcome("a"), _outcome("b"))
    assert summary.tokens_per_s == 300 * 4096 / 243.0


def test_summary_file_is_valid_json(tmp_path: Path) -> None:
    summary = _summary(_progress(), _outcome("a"))
    summary.write(RunFolder(tmp_path))
    read = json.loads((tmp_path / "summary.json").read_text())
    assert read["held_out_loss"] == 2.18 and read["digests"] == {"a": "da"} and read["baselines"] == BASELINES
    assert [path.name for path in tmp_path.iterdir()] == ["summary.json"]


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        (
            3.5,
            "not yet below the corpus's unigram 3.2400 and bigram 2.4200: it knows less than how often each token"
            " occurs",
        ),
        (
            3.0,
            "next to the corpus's unigram 3.2400 and bigram 2.4200: it knows more than how often each token occurs,"
            " not yet how often each token follows the one before it",
        ),
        (
            2.3,
            "below the corpus's unigram 3.2400 and bigram 2.4200: it knows more than how often each token follows"
            " the one before it",
        ),
        (None, ""),
    ],
)
def test_verdict_in_plain_words(loss: float | None, said: str) -> None:
    assert verdict(loss, BASELINES) == said


def test_verdict_without_baselines_is_empty() -> None:
    assert verdict(1.0, {}) == "" and verdict(float("nan"), BASELINES).startswith("not yet below")
