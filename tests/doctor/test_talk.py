from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.doctor.talk import LINE_LIMIT, PIECE, STEADY, Trouble, drink, hear, number, pour, words


class Sink:
    """A writer into a reader."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader

    def write(self, data: bytes) -> None:
        self._reader.feed_data(data)

    async def drain(self) -> None:
        await asyncio.sleep(0)


@given(most=st.integers(0, 10 * PIECE))
def test_what_is_poured_is_drunk(most: int) -> None:
    async def main() -> tuple[int, float]:
        reader = asyncio.StreamReader()
        writer: Any = Sink(reader)
        await pour(writer, 60.0, most, 5.0)
        return await drink(reader, 5.0, 60.0)

    nbytes, seconds = asyncio.run(main())
    assert nbytes == (most - PIECE if most - PIECE >= STEADY else most) and seconds > 0


def test_pieces_that_never_end_are_left() -> None:
    """Each of them is in time."""

    async def feed(reader: asyncio.StreamReader) -> None:
        while True:
            reader.feed_data((1).to_bytes(4, "big") + b"x")
            await asyncio.sleep(0)

    async def main() -> None:
        reader = asyncio.StreamReader()
        feeding = asyncio.create_task(feed(reader))
        try:
            await drink(reader, 60.0, 0.05)
        finally:
            feeding.cancel()

    with pytest.raises(Trouble, match="does not stop"):
        asyncio.run(main())


async def heard(line: bytes) -> dict[str, Any]:
    reader = asyncio.StreamReader(limit=LINE_LIMIT + PIECE)
    reader.feed_data(line)
    reader.feed_eof()
    return await hear(reader, 5.0)


@pytest.mark.parametrize("extra", [0, 1])
def test_a_line_may_be_so_long_and_no_longer(extra: int) -> None:
    line = b'{"a": "' + b"x" * (LINE_LIMIT + extra - 10) + b'"}\n'
    assert len(line) == LINE_LIMIT + extra
    if extra:
        with pytest.raises(Trouble, match="another protocol"):
            asyncio.run(heard(line))
    else:
        assert "a" in asyncio.run(heard(line))


@given(line=st.binary(max_size=100))
def test_a_line_is_an_object_or_trouble(line: bytes) -> None:
    said: object = {}
    try:
        said = asyncio.run(heard(line))
    except Trouble as trouble:
        said = {"trouble": str(trouble)}
    assert isinstance(said, dict) and str(said.get("trouble", "")).isprintable()


@pytest.mark.parametrize("value", [None, True, "1", -1, float("nan"), float("inf"), 10**400, [1]])
def test_what_is_no_number(value: object) -> None:
    with pytest.raises(Trouble):
        number({"n": value}, "n")


def test_texts_of_others_are_short_and_printable() -> None:
    assert words({"v": "0.1.0"}, "v") == "0.1.0"
    for text in ("\x1b[31mred", "x" * 10_000, "two\nlines"):
        assert words({"v": text}, "v").isprintable() and len(words({"v": text}, "v")) <= 410
