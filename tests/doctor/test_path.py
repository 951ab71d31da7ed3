"""The path test over real loopback sockets, and against others that say nothing, or nonsense."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest

from shoal.doctor import Endpoint, Finding, check_path, parse_endpoint, serve
from shoal.doctor.path import Limits
from shoal.errors import UserError

QUICK = Limits(connect=2.0, answer=5.0, flood=0.05)
HURRIED = Limits(connect=0.3, answer=0.3, flood=0.05)

Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def findings(to: Endpoint, limits: Limits) -> dict[str, Finding]:
    return {finding.check: finding async for finding in check_path(to, limits)}


async def against_ourselves(host: str) -> tuple[dict[str, Finding], list[str]]:
    ready: asyncio.Future[Endpoint] = asyncio.get_running_loop().create_future()
    events: list[str] = []
    server = asyncio.create_task(serve(Endpoint(host, 0), on_ready=ready.set_result, on_event=events.append))
    await asyncio.wait({server, ready}, return_when=asyncio.FIRST_COMPLETED)
    if server.done():
        server.result()
    try:
        return await findings(ready.result(), QUICK), events
    finally:
        server.cancel()
        with suppress(asyncio.CancelledError):
            await server


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_good_path(host: str) -> None:
    found, events = asyncio.run(against_ourselves(host))
    assert {check: finding.state for check, finding in found.items()} == dict.fromkeys(
        ("path", "clocks", "way back", "bandwidth"), "ok"
    )
    assert events == [f"{host} came", f"{host} is done"]


async def against(answer: Answer, limits: Limits = HURRIED) -> dict[str, Finding]:
    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        return await findings(Endpoint("127.0.0.1", server.sockets[0].getsockname()[1]), limits)


async def silence(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(asyncio.CancelledError):
        await reader.read()
    writer.close()


def talking(words: bytes) -> Answer:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(words)
        with suppress(ConnectionError):
            await writer.drain()
        writer.close()

    return talk


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (silence, "said nothing for 0.3 s"),
        (talking(b"HTTP/1.1 400 Bad Request\r\n\r\n"), "another protocol"),
        (talking(b""), "the connection"),
        (talking(b"x" * 1_000_000), "another protocol"),
        (talking(b"[1, 2]\n"), "another protocol"),
        (talking(b'{"protocol": "shoal-doctor/1", "nonce": "not mine"}\n'), "another protocol"),
    ],
)
def test_others_that_do_not_answer_as_they_should(answer: Answer, text: str) -> None:
    """Case A7: each failure has its own words."""
    found = asyncio.run(against(answer))
    assert found["path"].state == "fail" and text in found["path"].text


def test_nobody_there() -> None:
    async def refused() -> dict[str, Finding]:
        async with await asyncio.start_server(silence, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
        return await findings(Endpoint("127.0.0.1", port), HURRIED)

    assert "refused the connection" in asyncio.run(refused())["path"].text
    assert "has no address" in asyncio.run(findings(Endpoint("no-such-host.invalid", 1), QUICK))["path"].text


def test_a_machine_that_cannot_be_called_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Case A4: it can dial out, and nobody can dial in."""

    async def blocked(host: str, port: object, nonce: str) -> str:
        return "no answer within 3 s"

    monkeypatch.setattr("shoal.doctor.listener._dial", blocked)
    found, _ = asyncio.run(against_ourselves("127.0.0.1"))
    assert found["way back"].state == "warn" and "no answer within 3 s" in found["way back"].text
    assert found["bandwidth"].state == "ok"


def test_a_path_that_swallows_large_packets(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tunnel with a smaller MTU than it says: small messages pass, large ones hang."""

    async def stuck(*_: object) -> tuple[int, float]:
        await asyncio.sleep(3600)
        raise AssertionError

    monkeypatch.setattr("shoal.doctor.listener.drink", stuck)

    async def main() -> dict[str, Finding]:
        ready: asyncio.Future[Endpoint] = asyncio.get_running_loop().create_future()
        server = asyncio.create_task(
            serve(Endpoint("127.0.0.1", 0), on_ready=ready.set_result, on_event=lambda _: None)
        )
        try:
            return await findings(await ready, Limits(connect=2.0, answer=0.5, flood=0.05))
        finally:
            server.cancel()
            await asyncio.wait([server])

    found = asyncio.run(main())
    assert found["packets"].state == "fail" and "MTU" in found["packets"].mend


def test_listening_ends_by_itself_and_refuses_a_taken_port() -> None:
    async def main() -> None:
        ready: asyncio.Future[Endpoint] = asyncio.get_running_loop().create_future()
        first = asyncio.create_task(
            serve(Endpoint("127.0.0.1", 0), lasting=0.2, on_ready=ready.set_result, on_event=lambda _: None)
        )
        taken = await ready
        with pytest.raises(UserError, match="cannot listen"):
            await serve(taken, on_ready=lambda _: None, on_event=lambda _: None)
        await first

    asyncio.run(main())


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [
        ("oslo", Endpoint("oslo", 29600)),
        ("10.0.0.1:7", Endpoint("10.0.0.1", 7)),
        ("[::1]:29601", Endpoint("::1", 29601)),
        ("[fd77::1]", Endpoint("fd77::1", 29600)),
        ("::1", Endpoint("::1", 29600)),
    ],
)
def test_addresses(text: str, endpoint: Endpoint) -> None:
    """Case A5."""
    assert parse_endpoint(text, key="--peer") == endpoint
    assert parse_endpoint(str(endpoint), key="--peer") == endpoint


@pytest.mark.parametrize("text", ["", ":7", "oslo:x", "oslo:0", "oslo:70000", "[::1", "[::1]7", "a:b:c"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(UserError, match="--peer"):
        parse_endpoint(text, key="--peer")
