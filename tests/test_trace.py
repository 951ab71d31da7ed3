"""Timelines: valid JSON that Perfetto opens, with every span where it was."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.trace import Event, Span, Trace, timeline

times = st.floats(min_value=0, max_value=1e4, allow_nan=False)
spans = st.builds(
    lambda peer, lane, start, length: Span(peer=peer, lane=lane, name="x", start=start, stop=start + length),
    st.sampled_from(["a", "b"]),
    st.sampled_from(["compute", "send"]),
    times,
    st.one_of(st.just(0.0), st.floats(min_value=0, max_value=10)),
)


def complete(trace: dict[str, Any]) -> list[dict[str, Any]]:
    return [event for event in trace["traceEvents"] if event["ph"] == "X"]


def names(trace: dict[str, Any], kind: str) -> list[str]:
    return [event["args"]["name"] for event in trace["traceEvents"] if event["ph"] == "M" and event["name"] == kind]


@settings(deadline=None)
@given(st.lists(spans, max_size=30))
def test_spans_of_a_track_never_overlap(some: list[Span]) -> None:
    """Case I2: overlapping complete events on one track vanish from the screen."""
    tracks: dict[tuple[int, int], list[tuple[int, int]]] = {}
    events = complete(timeline(some))
    assert len(events) == len(some)
    for event in events:
        start, length = round(event["ts"] * 1000), round(event["dur"] * 1000)  # nanoseconds
        tracks.setdefault((event["pid"], event["tid"]), []).append((start, start + length))
    for track in tracks.values():
        ordered = sorted(track)
        assert all(before[1] <= after[0] for before, after in pairwise(ordered))


def test_touching_spans_share_a_track_however_they_are_rounded() -> None:
    """Case I2: a duration rounded by itself would reach into the next span."""
    cuts = [0.6e-9, 1.2006e-6, 2.4002e-6, 3.5998e-6]
    some = [Span("a", "compute", "x", start, stop) for start, stop in pairwise(cuts)]
    events = complete(timeline(some))
    assert {event["tid"] for event in events} == {1}
    ends = [round(1000 * event["ts"]) + round(1000 * event["dur"]) for event in events]
    assert ends[:-1] == [round(1000 * event["ts"]) for event in events[1:]]


def test_overlapping_transfers_lie_on_tracks_of_their_own() -> None:
    some = [Span("a", "send", "x", 0, 2), Span("a", "send", "y", 1, 3), Span("a", "send", "z", 2, 4)]
    shown = timeline(some)
    assert names(shown, "thread_name") == ["send", "send 2"]
    assert [event["tid"] for event in complete(shown)] == [1, 2, 1]


def test_each_peer_is_a_process_and_each_lane_a_thread() -> None:
    some = [Span("b", "compute", "x", 0, 1), Span("a", "compute", "x", 0, 1), Span("a", "update", "x", 0, 1)]
    shown = timeline(some, [Event("c", "step", 1.0)])
    assert names(shown, "process_name") == ["a", "b", "c"]
    assert names(shown, "thread_name") == ["compute", "update", "compute"]


def test_any_text_and_any_number_gives_valid_json() -> None:
    """Case I3: quotes, backslashes, control characters, NaN and numbers in exponent notation."""
    name = 'C:\\models\\"x"\n\x01é'
    odd = {"loss": math.nan, "most": math.inf, "tag": ("x", 1), "peer": {1: {2}}, "none": None}
    start = 1.7e9  # seconds since 1970
    shown = timeline([Span(name, "compute", name, start, start + 1e-9, odd)], [Event(name, name, 1e-9, odd)])

    def refuse(constant: str) -> float:
        raise AssertionError(f"{constant} is not JSON")

    text = json.dumps(shown)
    back = json.loads(text, parse_constant=refuse)
    [span] = complete(back)
    assert span["name"] == name
    assert span["args"] == {"loss": "nan", "most": "inf", "tag": ["x", 1], "peer": {"1": "{2}"}, "none": None}
    numbers = text.replace(json.dumps(name), "")
    assert "e+" not in numbers and "e-" not in numbers


def test_times_are_microseconds() -> None:
    shown = timeline([Span("a", "compute", "x", 0.5, 0.75)], [Event("a", "step", 0.25, {"step": 3})])
    [span] = complete(shown)
    assert (span["ts"], span["dur"]) == (500_000.0, 250_000.0)
    [event] = [event for event in shown["traceEvents"] if event["ph"] == "i"]
    assert (event["ts"], event["args"]) == (250_000.0, {"step": 3})


def test_a_span_that_ends_before_it_starts_has_no_length() -> None:
    [span] = complete(timeline([Span("a", "compute", "x", 2.0, 1.0)]))
    assert (span["ts"], span["dur"]) == (2e6, 0.0)


def test_nothing_gives_an_empty_timeline() -> None:
    assert timeline([]) == {"traceEvents": [], "displayTimeUnit": "ms"}


def test_a_trace_keeps_a_limited_number_of_spans_and_counts_the_rest() -> None:
    trace = Trace(span_limit=2)
    for n in range(5):
        trace.span(Span("a", "compute", str(n), n, n + 1))
    assert [span.name for span in trace.spans] == ["0", "1"] and trace.dropped == 3


def test_events_are_written_through_or_kept() -> None:
    kept, seen = Trace(), []
    written = Trace(on_event=seen.append)
    event = Event("a", "step", 1.0)
    kept.event(event)
    written.event(event)
    assert kept.events == [event] and seen == [event] and written.events == []


@pytest.mark.parametrize("peers", [1, 12])
def test_peers_are_numbered_in_sorted_order(peers: int) -> None:
    some = [Span(f"p{n:02d}", "compute", "x", 0, 1) for n in reversed(range(peers))]
    assert [event["pid"] for event in complete(timeline(some))] == list(range(1, peers + 1))
