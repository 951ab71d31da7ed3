"""Frames: what `pack` writes `blank` reads, and nothing else is believed."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from shoal.transport.frame import MAGIC, PREFIX, Frame, Limits, Malformed, blank, check, flat_bytes, lengths, pack
from shoal.world import Payload, Tag, dense

HEADER: dict[str, Any] = {"p": "message", "t": ["x", 0, []], "c": "dense", "n": 8, "x": [["float32", [2]]]}

keys = st.recursive(
    st.integers(-(2**70), 2**70) | st.text(max_size=8), lambda k: st.lists(k, max_size=3).map(tuple), max_leaves=6
)
shapes = st.lists(st.integers(0, 4), max_size=4)
dtypes = st.sampled_from(
    [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.int8, torch.bool, torch.complex64]
)


def arrive(frame: Frame) -> Frame:
    """What a receiver makes of `frame`."""
    head, flat = pack(frame)
    header, payload = lengths(head[: PREFIX.size])
    assert len(head) == PREFIX.size + header
    assert payload == sum(part.numel() for part in flat)
    copy = blank(head[PREFIX.size :], payload)
    for into, part in zip(copy.body.tensors, flat, strict=True):
        flat_bytes(into).copy_(part)
    check(copy)
    return copy


@given(
    tag=st.builds(Tag, st.text(max_size=20), st.integers(-(2**62), 2**62), st.lists(keys, max_size=3).map(tuple)),
    kinds=st.lists(st.tuples(dtypes, shapes), max_size=4),
    codec=st.text(max_size=10),
    nbytes=st.integers(0, 2**62),
)
def test_a_frame_survives_the_wire(
    tag: Tag, kinds: list[tuple[torch.dtype, list[int]]], codec: str, nbytes: int
) -> None:
    tensors = tuple(torch.testing.make_tensor(shape, dtype=dtype, device="cpu") for dtype, shape in kinds)
    got = arrive(Frame(tag, Payload(tensors, nbytes, codec)))
    assert (got.tag, got.body.nbytes, got.body.codec) == (tag, nbytes, codec)
    for x, y in zip(got.body.tensors, tensors, strict=True):
        assert x.dtype == y.dtype and torch.equal(x, y)


def test_non_finite_bits_survive() -> None:
    x = torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0])
    (got,) = arrive(Frame(Tag("x"), dense(x))).body.tensors
    assert torch.equal(got.view(torch.int32), x.view(torch.int32))


@given(st.binary(min_size=PREFIX.size, max_size=PREFIX.size))
def test_a_random_prefix_is_refused_or_within_bounds(prefix: bytes) -> None:
    limits = Limits()
    try:
        header, payload = lengths(prefix, limits=limits)
    except Malformed:
        return
    assert header <= limits.header_bytes and payload <= limits.payload_bytes


def test_an_oversized_announcement_is_refused() -> None:
    limits = Limits(payload_bytes=1000)
    with pytest.raises(Malformed, match="1001 bytes"):
        lengths(PREFIX.pack(MAGIC, 10, 1001), limits=limits)
    with pytest.raises(Malformed, match="header of 65537"):
        lengths(PREFIX.pack(MAGIC, 65537, 0), limits=limits)


@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_random_headers_are_refused(header: bytes) -> None:
    with pytest.raises(Malformed):
        blank(header, 0)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda v: st.lists(v, max_size=3) | st.dictionaries(st.text(max_size=3), v, max_size=3),
    max_leaves=5,
)


@given(key=st.sampled_from("ptcnx"), value=json_values)
def test_a_header_with_one_wrong_field_never_does_harm(key: str, value: Any) -> None:
    """Either it is refused, or it is a header that `pack` could have written."""
    try:
        frame = blank(json.dumps({**HEADER, key: value}).encode(), 8)
    except Malformed:
        return
    assert sum(t.numel() * t.element_size() for t in frame.body.tensors) == 8
    pack(frame)


@pytest.mark.parametrize(
    "change",
    [
        {"x": [["float32", [2]], ["float32", [1]]]},  # more than the payload
        {"x": [["float32", [2**40, 2**40]]]},
        {"x": [["float32", [-2]]]},
        {"x": [["float32", [0, 2**62, 2**62]], ["float32", [2]]]},  # no elements, absurd sizes
        {"x": [["object", [2]]]},
        {"x": [["float32", [1] * 17]]},
        {"x": [["bool", [1]]] * 2000},
        {"t": ["x", 0, [[[[[[[[[[]]]]]]]]]]]},
        {"t": ["x", True, []]},
        {"p": "pickle"},
        {"n": -1},
        {"more": 1},
    ],
)
def test_nonsense_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(Malformed):
        blank(json.dumps({**HEADER, **change}).encode(), 8)


def test_deep_nesting_is_refused_not_fatal() -> None:
    with pytest.raises(Malformed):
        blank(b"[" * 60_000, 0)


def test_a_bool_that_is_none_is_refused() -> None:
    frame = blank(json.dumps({**HEADER, "x": [["bool", [3]]]}).encode(), 3)
    flat_bytes(frame.body.tensors[0]).copy_(torch.tensor([0, 1, 2], dtype=torch.uint8))
    with pytest.raises(Malformed, match="neither 0 nor 1"):
        check(frame)
