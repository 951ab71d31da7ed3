"""The listening end against testers that misbehave."""

from __future__ import annotations

import asyncio
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from doctor.ends import findings, listener
from shoal.doctor import Endpoint, serve
from shoal.doctor.talk import PROTOCOL
from shoal.errors import UserError

HELLO = json.dumps({"protocol": PROTOCOL, "nonce": "n", "version": "0"}).encode() + b"\n"


async def told(to: Endpoint, words: bytes) -> bytes:
    """All that it answers to `words`, until it hangs up."""
    reader, writer = await asyncio.open_connection(to.host, to.port)
    writer.write(words)
    writer.write_eof()
    try:
        return await asyncio.wait_for(reader.read(), 20)
    except ConnectionError:
        return b""
    finally:
        writer.close()


async def tell_and_test(words: bytes, events: list[str]) -> bool:
    """Whether it still does its work after somebody has said `words`."""
    async with listener(events=events) as to:
        await told(to, words)
        return all(finding.state == "ok" for finding in (await findings(to)).values())


@pytest.mark.parametrize(
    ("words", "event"),
    [
        (b"", "hung up"),
        (b"GET / HTTP/1.1\r\n\r\n", "another protocol"),
        (b"x" * 1_000_000, "another protocol"),
        (b"[" * 60_000 + b"\n", "another protocol"),
        (b'{"protocol": "other"}\n', "another protocol"),
        (HELLO + b'{"do": "format the disk"}\n', "does not exist"),
        (HELLO + b'{"do": "give", "seconds": "long", "most": 1}\n', "its seconds is 'long'"),
        (HELLO + b'{"do": "give", "seconds": -1, "most": 1}\n', "another protocol"),
        (HELLO + b'{"do": "give", "seconds": NaN, "most": 1}\n', "another protocol"),
        (HELLO + b'{"do": "give", "seconds": 1, "most": 1' + b"0" * 400 + b"}\n", "another protocol"),
        (HELLO + b'{"do": "dial"}\n', "another protocol"),
        (HELLO + b'{"do": "take"}\n\xff\xff\xff\xff', "too large"),
        (HELLO + b'{"do": "take"}\n\x00\x00\x01\x00abc', "in the middle"),
        (HELLO, "hung up"),
    ],
)
def test_nonsense_is_refused_named_and_survived(words: bytes, event: str) -> None:
    events: list[str] = []
    assert asyncio.run(tell_and_test(words, events))
    assert any(event in said for said in events), events
    assert all(said.isprintable() for said in events)


@given(words=st.binary(max_size=300), greet=st.booleans())
def test_any_bytes_are_survived(words: bytes, greet: bool) -> None:
    async def main() -> bytes:
        async with listener() as to:
            await told(to, HELLO * greet + words)
            return await told(to, HELLO)

    assert json.loads(asyncio.run(main()))["nonce"] == "n"


def test_one_tester_at_a_time_and_the_next_is_told() -> None:
    async def main() -> tuple[str, str, str]:
        events: list[str] = []
        async with listener(events=events) as to:
            _, silent = await asyncio.open_connection(to.host, to.port)  # who never greets holds up nobody
            reader, first = await asyncio.open_connection(to.host, to.port)
            first.write(HELLO)
            await reader.readline()
            busy = (await findings(to))["path"].text
            first.write(b'{"do": "bye"}\n')
            await reader.read()
            after = (await findings(to))["path"].text
            silent.close()
            first.close()
        return busy, after, " ".join(events)

    busy, after, events = asyncio.run(main())
    assert "tests another machine just now" in busy and "answers" in after
    assert "must come again" in events


def test_it_ends_by_itself_even_with_a_tester_at_work() -> None:
    async def main() -> None:
        ready: asyncio.Future[Endpoint] = asyncio.get_running_loop().create_future()
        server = asyncio.create_task(
            serve(Endpoint("127.0.0.1", 0), lasting=0.3, on_ready=ready.set_result, on_event=lambda _: None)
        )
        to = await ready
        reader, writer = await asyncio.open_connection(to.host, to.port)
        writer.write(HELLO)
        await reader.readline()
        await asyncio.wait_for(server, 20)
        assert await asyncio.wait_for(reader.read(), 20) == b""
        writer.close()

    asyncio.run(main())


def test_a_taken_port_and_an_address_of_another_machine_are_refused() -> None:
    async def main() -> None:
        async with listener() as taken:
            for at in (taken, Endpoint("198.51.100.7", 0)):
                with pytest.raises(UserError, match="cannot listen"):
                    await serve(at, on_ready=lambda _: None, on_event=lambda _: None)

    asyncio.run(main())
