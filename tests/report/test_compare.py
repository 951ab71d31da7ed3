"""Run folders are made by hand, so that every right answer can be worked out on paper."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from shoal.errors import UserError
from shoal.launch.prepare import prepare
from shoal.report.compare import Comparison, compare
from shoal.report.intervals import common, length, union, within
from shoal.report.measured import Measured, run_folder, summarise
from shoal.report.side_by_side import lines, show
from shoal.report.text import to_json
from shoal.worker import RunFolder

JOB = """
name = "tiny"
[model]
args = { width = 8, layers = 1, heads = 1 }
[data]
source = "files"
files = ["text.txt"]
sequence = 16
[batch]
size = 6
[run]
steps = 6
threads = 1
eval_every = 0
checkpoint_every = 0
"""
PAIRS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)).map(lambda pair: tuple(sorted(pair))), max_size=12)
SECONDS = [1.0, 2.0, 3.0, 4.5, 5.0]
"""When each step of a made run ends: steps 3 and 4 are timed, 1.5 s and 0.5 s long."""

# ------------------------------------------------------------------------------------------------- intervals


def cells(found: Sequence[tuple[float, float]]) -> set[int]:
    """The unit cells of a grid that whole-numbered intervals cover: the oracle."""
    return {cell for start, stop in found for cell in range(int(start), int(stop))}


@given(PAIRS, PAIRS)
def test_unions_and_what_they_share_against_a_grid(a: Any, b: Any) -> None:
    for found in (union(a), union(b), common(union(a), union(b))):
        assert all(start < stop for start, stop in found)
        assert all(stop <= start for (_, stop), (start, _) in itertools.pairwise(found))
    assert cells(union(a)) == cells(a) and length(union(a)) == len(cells(a))
    assert cells(common(union(a), union(b))) == cells(a) & cells(b)
    assert length(common(union(a), union(b))) == len(cells(a) & cells(b))


@given(PAIRS, st.lists(st.integers(0, 40), max_size=8, unique=True).map(sorted), st.integers(0, 40))
def test_what_lies_within_windows_against_a_grid(a: Any, edges: list[int], gap: int) -> None:
    """Windows touch, as steps do, except around one that is left out."""
    windows = [window for n, window in enumerate(itertools.pairwise(edges)) if n != gap]
    assert within(union(a), windows) == [len(cells(a) & set(range(*window))) for window in windows]


# -------------------------------------------------------------------------------------------------- made runs


@pytest.fixture
def job(tmp_path: Path) -> Path:
    (tmp_path / "text.txt").write_text("the quick brown fox jumps over the lazy dog. " * 60)
    (tmp_path / "job.toml").write_text(JOB)
    return tmp_path / "job.toml"


def span(lane: str, start: float, stop: float, name: str = "x", **args: Any) -> dict[str, Any]:
    return {"lane": lane, "name": name, "start": start, "stop": stop, "args": args}


def steps(ends: Sequence[float], *, loss: float = 2.0, first: int = 0, weight: float = 4.0) -> list[dict[str, Any]]:
    """``step`` events of a session of its own."""
    told = [{"at": 0.0, "kind": "session", "session": f"from {first}"}, {"at": 0.0, "kind": "start", "step": first}]
    fields = {"kind": "step", "loss": float.hex(loss * weight), "weight": weight}
    return told + [{"at": at, "step": first + n, **fields} for n, at in enumerate(ends)]


def write(path: Path, objects: Sequence[Mapping[str, Any]]) -> None:
    path.write_text("".join(json.dumps(told) + "\n" for told in objects))


def made(
    job: Path,
    events: Mapping[str, Sequence[Mapping[str, Any]]],
    spans: Mapping[str, Sequence[Mapping[str, Any]]] | None = None,
    *,
    world: str | None = "processes",
    overrides: Sequence[str] = (),
) -> RunFolder:
    """A run folder whose peers left these events and spans."""
    folder = prepare(job, runs=job.parent / "runs", workers=len(events), overrides=overrides).folder
    for peer, told in events.items():
        write(folder.events(peer), told)
        write(folder.spans(peer), (spans or {}).get(peer, ()))
    if world is not None:
        summary = {"world": world, "status": "done", "held_out_loss": 1.5, "step": 5}
        folder.summary.write_text(json.dumps(summary))
    return folder


def row(found: Comparison, name: str) -> tuple[float | None, float | None]:
    (one,) = [row for row in found.rows if row.name.strip() == name]
    return one.a, one.b


def of_itself(run: Measured) -> Comparison:
    return compare(run, run)


def test_figures_of_one_worker_by_hand(job: Path) -> None:
    """Two timed steps, from 3 s to 5 s. What lies outside does not count, what overlaps on a lane counts once."""
    spans = [
        span("compute", 0.0, 2.5),
        span("compute", 2.8, 3.5),  # 0.5 of it inside
        span("compute", 3.4, 3.8),  # 0.3 more
        span("update", 4.0, 4.2),
        span("send", 3.7, 4.5, bytes=1000),
        span("send", 4.2, 4.6, bytes=500),  # ends in the last step
        span("send", 2.0, 2.5, bytes=77),
        span("wait", 4.1, 4.4),
        span("wait", 4.9, 6.0),
    ]
    run = summarise(made(job, {"worker-0": steps(SECONDS)}, {"worker-0": spans}))
    assert (run.world, run.simulated, run.status, run.steps) == ("processes", False, "done", (0, 1, 2, 3, 4))
    assert {step: told.seconds for step, told in run.timed["worker-0"].items()} == {3: 1.5, 4: 0.5}
    assert run.median_step_s == 1.0
    found = of_itself(run)
    figures = found.figures_a
    assert found.timed_steps == (3, 4) and figures.steps == 2
    assert figures.step_s == pytest.approx({10: 0.6, 50: 1.0, 90: 1.4})
    assert figures.lane_s == pytest.approx({"compute": 0.4, "update": 0.1, "send": 0.45, "wait": 0.2})
    assert figures.lane_share == pytest.approx({"compute": 0.4, "update": 0.1, "send": 0.45, "wait": 0.2})
    assert figures.sent_bytes == 750 and figures.received_bytes == 750  # collectives: as much comes in as goes out
    assert figures.computing_s == pytest.approx((0.8 + 0.2) / 2)
    assert figures.hidden_s == pytest.approx((0.1 + 0.2) / 2)  # sending at 3.7 to 3.8 and at 4.0 to 4.2
    assert figures.exposed_s == pytest.approx((0.2 + 0.4 + 0.1) / 2)  # 3.8 to 4.0, 4.2 to 4.6, 4.9 to 5.0
    assert figures.other_s == pytest.approx((2.0 - 1.0 - 0.7) / 2)
    assert run.notes == ()


def test_bytes_go_to_whom_they_were_sent_in_the_step_in_which_they_came(job: Path) -> None:
    """The receiver's own steps count: its step 3 ends at 5 s, when the sender's is over already."""
    events = {"worker-0": steps([1, 2, 3, 4, 5]), "worker-1": steps([1, 2, 3, 5, 6])}
    sent = [span("send", 3.1, 4.5, to="worker-1", bytes=600), span("send", 4.5, 5.0, to="worker-1", bytes=60)]
    spans = {"worker-0": [*sent, span("compute", 5.0, 7.0)], "worker-1": [span("compute", 3.0, 7.0)]}
    run = summarise(made(job, events, spans))
    busy = {(peer, n): step.busy for peer, known in run.timed.items() for n, step in known.items()}
    told = {key: (found.sent_bytes, found.received_bytes) for key, found in busy.items() if found is not None}
    assert told == {
        ("worker-0", 3): (0, 0),
        ("worker-0", 4): (660, 0),
        ("worker-1", 3): (0, 660),
        ("worker-1", 4): (0, 0),
    }
    found = of_itself(run)
    assert row(found, "sent per step") == (165, 165) and row(found, "received per step") == (165, 165)


def test_the_workers_own_protocols_hold_nothing_up(job: Path) -> None:
    """A worker waits for the word that the run is over from its first step to its last."""
    beside = [span("wait", 0.0, 9.0, "stop-when"), span("wait", 3.0, 9.0, "checkpoint-whole")]
    beside += [span("send", 3.0, 5.0, "metric", to="worker-0", bytes=32)]
    told = [span("compute", 3.0, 4.0), span("wait", 4.0, 4.5, "mix"), *beside]
    figures = of_itself(summarise(made(job, {"worker-0": steps(SECONDS)}, {"worker-0": told}))).figures_a
    assert figures.lane_s == pytest.approx({"compute": 0.5, "wait": 0.25})
    assert figures.hidden_s == 0 and figures.exposed_s == pytest.approx(0.25)
    assert figures.sent_bytes == 16


def test_spans_without_duration_are_counted_and_in_no_average(job: Path) -> None:
    """Case I6: also those at time zero, and one that ends before it starts; their bytes are real."""
    odd = [span("compute", 0.0, 0.0), span("wait", 4.0, 4.0), span("update", 4.0, 3.5), span("send", 4, 4, bytes=8)]
    whole = [span("compute", 3.0, 4.0), span("wait", 4.0, 5.0)]
    run = summarise(made(job, {"worker-0": steps(SECONDS)}, {"worker-0": whole + odd}))
    bare = summarise(made(job, {"worker-0": steps(SECONDS)}, {"worker-0": whole}))
    found = compare(run, bare)
    assert (run.spans, run.empty_spans) == (6, 4) and row(found, "spans without duration") == (4, 0)
    a, b = found.figures_a, found.figures_b
    assert {lane: busy for lane, busy in a.lane_s.items() if busy} == b.lane_s == {"compute": 0.5, "wait": 0.5}
    assert (a.exposed_s, a.other_s, a.sent_bytes, b.sent_bytes) == (b.exposed_s, b.other_s, 4, 0)


def test_steps_without_duration_are_not_averaged_in(job: Path) -> None:
    run = summarise(made(job, {"worker-0": steps([1, 2, 3, 4, 4, 6])}))
    assert {n: step.seconds for n, step in run.timed["worker-0"].items()} == {3: 1.0, 5: 2.0}
    assert "1 steps of worker-0 have no duration and are not averaged in" in run.notes


# ------------------------------------------------------------------------------------------- what is missing


def test_what_is_missing_empty_or_torn_is_said_and_the_rest_compared(job: Path) -> None:
    """Case I4: a killed run with one peer's log missing, one empty, one torn; another is whole but dropped spans."""
    peers = [f"worker-{n}" for n in range(4)]
    whole = {peer: [span("compute", 3.0, 5.0)] for peer in peers}
    folder = made(job, dict.fromkeys(peers, steps(SECONDS)), whole, world=None)
    folder.events("worker-1").unlink()
    folder.events("worker-2").write_text("")
    folder.spans("worker-2").unlink()
    folder.events("worker-3").write_text("\n".join(map(json.dumps, steps(SECONDS[:4]))) + '\n{"at": 5.0, "kind": "st')
    folder.spans("worker-3").write_text(json.dumps(span("compute", 3.0, 4.5)) + '\n{"lane": "compute", "na')
    with folder.spans("worker-0").open("a") as file:
        file.write(json.dumps({"dropped": 7}) + "\n" + json.dumps(span("compute", 3, 4) | {"stop": None}) + "\n")
    run = summarise(folder)
    assert (run.world, run.status) == ("processes", "unknown")  # the folder's name tells the world
    assert {peer: list(known) for peer, known in run.timed.items() if known} == {"worker-0": [3, 4], "worker-3": [3]}
    figures = of_itself(run).figures_a
    assert figures.workers["worker-0"].step_s == 1.0 and figures.workers["worker-3"].step_s == 1.5
    assert figures.lane_s["compute"] == pytest.approx((1.0 + 1.5) / 2)
    assert set(run.notes) == {
        "worker-1 logged no step in the newest session (events/worker-1.jsonl is missing)",
        "worker-2 logged no step in the newest session (events/worker-2.jsonl is empty)",
        "worker-3 logged nothing after step 3, others went on to step 4",
        "worker-2 left no spans: its lanes are unknown, and what others received is too low",
        "worker-0 left out 7 spans for want of room, the last ones",
        "1 spans of worker-0 have no times",
        "no summary of the newest session: killed, or still running",
    }


def test_a_lost_log_makes_no_difference_of_losses(job: Path) -> None:
    """Half of the batch is compared with the same half."""
    halves = {"worker-0": steps(SECONDS, loss=1.0), "worker-1": steps(SECONDS, loss=3.0)}
    whole, cut = made(job, halves), made(job, halves)
    cut.events("worker-1").unlink()
    found = compare(summarise(whole), summarise(cut))
    assert found.losses == dict.fromkeys(range(5), (1.0, 1.0)) and found.worst_loss == (0.0, 0)
    assert of_itself(summarise(whole)).losses[4] == (2.0, 2.0)
    assert "losses: without those of worker-1 where a log lacks them" in lines(found)


def test_steps_that_the_spans_do_not_reach_have_no_lanes(job: Path) -> None:
    """Spans are written once a second, events at once: a killed worker's spans end earlier."""
    ends = [1.0, 2, 3, 4, 5, 6, 7]
    run = summarise(made(job, {"worker-0": steps(ends)}, {"worker-0": [span("compute", 3.5, 4.0)]}))
    assert [step.busy is not None for step in run.timed["worker-0"].values()] == [True, False, False, False]
    figures = of_itself(run).figures_a
    assert figures.lane_s == {"compute": 0.5} and figures.step_s[50] == 1.0
    assert "the spans of worker-0 end 3 steps early: its lanes and bytes are of the others" in run.notes


def test_a_run_too_short_to_time_or_without_any_step(job: Path) -> None:
    short, none = (summarise(made(job, {"worker-0": steps(ends)})) for ends in ([1.0, 2.0, 3.0], []))
    assert short.median_step_s is None and any(note.startswith("nothing to time") for note in short.notes)
    for found in (of_itself(short), compare(short, none), of_itself(none)):
        assert all(r.a is None for r in found.rows if r.unit in ("s", "B"))
        assert any(line.startswith("step time, median") and line.count("–") == 2 for line in lines(found))
    assert compare(short, none).worst_loss is None and of_itself(short).worst_loss == (0.0, 0)


def test_a_bad_folder_is_named(job: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nowhere: no such folder; name a folder like runs/job/1"):
        run_folder(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"not a run: it has no job\.toml"):
        run_folder(tmp_path / "empty")
    with pytest.raises(UserError, match=r"not a run: it has no cluster\.toml"):
        summarise(run_folder(tmp_path))
    folder = made(job, {"worker-0": steps(SECONDS)})
    assert run_folder(folder.root.parent) == run_folder(folder.root) == folder
    folder.plan.write_text("{}")
    with pytest.raises(UserError, match="cannot be read as a run"):
        summarise(folder)


# --------------------------------------------------------------------------------------------- two unlike runs


def test_only_common_steps_of_the_newest_session_are_timed(job: Path) -> None:
    """B went on from step 2: its first session does not count, and its warm-up is its own steps 2 to 4."""
    long = steps([1.0, 2, 3, 4, 5, 6, 7])
    went_on = [*steps([1.0, 2.0, 50.0]), *steps([2.0, 4, 6, 8, 10], first=2)]
    found = compare(*(summarise(made(job, {"worker-0": told})) for told in (long, went_on)))
    assert found.timed_steps == (5, 6) and list(found.losses) == [2, 3, 4, 5, 6]
    assert row(found, "step time, median") == (1.0, 2.0)
    apart = compare(found.a, summarise(made(job, {"worker-0": steps([1.0, 4, 7, 10, 13], first=90)})))
    assert apart.timed_steps == () and row(apart, "step time, median") == (1.0, 3.0)
    assert any("no timed step in common" in line for line in lines(apart))


def test_steps_that_only_one_run_interrupted_are_left_out(job: Path) -> None:
    """A checkpoint after every second step makes steps 4 and 6 of B longer; a rehearsal in timing mode saves none."""
    saves = ["run.checkpoint_every=2"]
    a = made(job, {"worker-0": steps([1, 2, 3, 4, 5, 6, 7], weight=0.0)}, world="timing", overrides=saves)
    b = made(job, {"worker-0": steps([1, 2, 3, 4, 15, 16, 27])}, overrides=saves)
    found = compare(summarise(a), summarise(b))
    assert found.timed_steps == (3, 5) and found.left_out == (4, 6)
    assert row(found, "step time, median") == (1.0, 1.0)
    assert found.losses == {} and found.worst_loss is None
    alike = of_itself(summarise(b))
    assert alike.timed_steps == (3, 4, 5, 6) and alike.left_out == ()


def test_differences_are_named(job: Path) -> None:
    told = {"worker-0": steps(SECONDS), "worker-1": steps([1.0, 2.0, 3.0, 5.0, 6.0])}
    a = summarise(made(job, told, world="timing"))
    twice = {peer: steps([2 * e["at"] for e in events[2:]], loss=2.5) for peer, events in told.items()}
    twice["worker-2"] = twice["worker-1"]
    b = summarise(made(job, twice, overrides=["optimizer.lr=0.5", "mixing.name=none"]))
    found = compare(a, b)
    assert found.job == {"optimizer.lr": (0.001, 0.5), "mixing.name": ("all-reduce", "none")}
    assert found.cluster["device[worker-2]"][0] is None and found.cluster["device[worker-2]"][1]["kind"] == "cpu"
    assert found.worst_loss == (0.5, 0)
    assert next(r.difference for r in found.rows if r.name == "loss at step 4") == 0.5
    assert {peer: worker.step_s for peer, worker in found.figures_b.workers.items()} == {
        "worker-0": 2.0,
        "worker-1": 3.0,
        "worker-2": 3.0,
    }
    text = lines(found)
    assert text[0].split() == ["A:", "simulated", "B:", "measured", "B", "/", "A"]
    for line in (
        "slowest worker of A: worker-1, 1.5 s, 20% above the median",
        "losses: at 5 common steps 0.5 apart at most, at step 0",
        "job: mixing.name is 'all-reduce' in A, 'none' in B",
        "cluster: device[worker-2] is only in B",
    ):
        assert line in text


def test_the_worker_that_computes_longest_is_named_where_all_wait_for_it(job: Path) -> None:
    """Case I5: all steps are equally long, and the one that holds the others up is the one that does not wait."""
    busy = {
        peer: [span("compute", 3.0, stop), span("wait", stop, 5.0)]
        for peer, stop in zip(("worker-0", "worker-1", "worker-2"), (3.5, 5.0, 3.5), strict=True)
    }
    text = lines(of_itself(summarise(made(job, dict.fromkeys(busy, steps(SECONDS)), busy))))
    assert "longest computing worker of A: worker-1, 1 s, 300% above the median" in text
    assert not any(line.startswith("slowest worker") for line in text)


def test_losses_that_are_no_numbers(job: Path) -> None:
    fine, broken = (summarise(made(job, {"worker-0": steps(SECONDS, loss=loss)})) for loss in (1.0, math.nan))
    assert of_itself(broken).worst_loss == (0.0, 0)
    found = compare(fine, broken)
    assert found.worst_loss == (math.inf, 0)
    assert "losses: at 5 common steps only one is a number at step 0" in lines(found)
    assert json.loads(to_json(found.to_json()))["worst_loss"] == {"apart": None, "step": 0}


def test_held_out_losses_where_runs_ended_at_different_steps(job: Path) -> None:
    folders = [made(job, {"worker-0": steps(SECONDS)}) for _ in range(2)]
    for folder, told in zip(folders, ({10: 2.0, 20: 1.5}, {10: 2.25}), strict=True):
        evals = [{"kind": "eval", "step": step, "loss": loss} for step, loss in told.items()]
        write(folder.metrics, [{"kind": "step", "step": 10, "loss": 9.0}, *evals, {"kind": "eval", "step": 30}])
    found = compare(*map(summarise, folders))
    assert row(found, "held-out loss at step 10") == (2.0, 2.25)
    assert row(found, "held-out loss at the end") == (1.5, 2.25)


def test_a_summary_of_an_earlier_session_is_not_taken_for_that_of_the_newest(job: Path) -> None:
    """A run that was done, was resumed for more steps, and was killed."""
    folder = made(job, {"worker-0": [*steps(SECONDS), *steps([1.0, 2.0, 3.0, 4.0], first=5)]}, world="lab")
    run = summarise(folder)
    assert (run.world, run.status, run.held_out) == ("lab", "unknown", {})
    assert "no summary of the newest session: killed, or still running" in run.notes


def test_a_pace_that_was_not_kept_is_said(job: Path) -> None:
    pace = {"at": 6.0, "kind": "pace", "asked_s": 10.0, "debt_s": 1.0}
    run = summarise(made(job, {"worker-0": [*steps(SECONDS), pace]}, world="lab"))
    assert run.notes[0] == "the pace was not kept: worker-0 computed 10% longer than its device would"


def test_a_terminal_gets_the_same_figures(job: Path) -> None:
    found = of_itself(summarise(made(job, {"worker-0": steps(SECONDS)}, {"worker-0": [span("compute", 3.0, 5.0)]})))
    plain, drawn = (Console(force_terminal=terminal, width=1000) for terminal in (False, True))
    texts = []
    for console in (plain, drawn):
        with console.capture() as said:
            show(found, console)
        texts.append(said.get())
    assert "\x1b[" in texts[1] and "\x1b[" not in texts[0]
    unstyled = "".join(part.partition("m")[2] if n else part for n, part in enumerate(texts[1].split("\x1b[")))
    assert [line.split() for line in unstyled.splitlines()] == [line.split() for line in texts[0].splitlines()]
