from __future__ import annotations

import asyncio
import errno
import socket
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from doctor.ends import answering, silence
from shoal.doctor import Endpoint
from shoal.doctor.dialling import Resolve, dial
from shoal.doctor.talk import Trouble


def names(*addresses: str) -> Resolve:
    def resolve(host: str, port: int) -> Sequence[tuple[Any, ...]]:
        return [(None, None, None, "", (address, port)) for address in addresses]

    return resolve


async def refusal(to: Endpoint, within: float = 5.0, resolve: Resolve | None = None) -> Trouble:
    with pytest.raises(Trouble) as caught:
        await dial(to, within, resolve=resolve)
    assert caught.value.mend
    return caught.value


async def closed_port() -> int:
    async with answering(silence) as to:
        return to.port


def test_the_first_address_that_answers_is_taken() -> None:
    """Cases A5 and A7: a name may have an address that leads nowhere."""

    async def main() -> str:
        async with answering(silence) as to:
            _, writer = await dial(Endpoint("oslo", to.port), 5.0, resolve=names("127.0.0.2", "127.0.0.1"))
            writer.close()
            return str(writer.get_extra_info("peername")[0])

    assert asyncio.run(main()) == "127.0.0.1"


def test_each_address_has_its_own_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """Case A7: refused, silent, unreachable, forbidden."""
    reasons = {"10.0.0.1": errno.EHOSTUNREACH, "10.0.0.2": errno.ENETUNREACH, "10.0.0.3": errno.EPERM}

    async def connect(host: str, port: int, **_: object) -> None:
        if host in reasons:
            raise OSError(reasons[host], "Connect call failed")
        await asyncio.Event().wait()

    monkeypatch.setattr(asyncio, "open_connection", connect)
    trouble = asyncio.run(refusal(Endpoint("oslo", 7), 0.05, names(*reasons, "10.0.0.4")))
    parts = str(trouble).split("; ")
    assert [part.partition(" ")[0] for part in parts] == [*reasons, "10.0.0.4"]
    assert "does not find it" in parts[0] and "no route" in parts[1] and "may not be called" in parts[2]
    assert "did not answer within 0.05 s" in parts[3]


def test_one_reason_for_all_addresses_is_said_once() -> None:
    async def main() -> Trouble:
        return await refusal(Endpoint("oslo", await closed_port()), resolve=names("127.0.0.1", "127.0.0.2"))

    assert str(asyncio.run(main())) == "refused the connection: nobody listens there"


def test_an_unknown_error_is_in_the_systems_words(monkeypatch: pytest.MonkeyPatch) -> None:
    async def connect(host: str, port: int, **_: object) -> None:
        raise OSError(errno.EADDRNOTAVAIL, "Connect call failed")

    monkeypatch.setattr(asyncio, "open_connection", connect)
    trouble = asyncio.run(refusal(Endpoint("oslo", 7), resolve=names("10.0.0.1")))
    assert "cannot be called" in str(trouble) and "Connect call" not in str(trouble)


@pytest.mark.parametrize("error", [socket.gaierror(-2, "Name or service not known"), UnicodeError("label too long")])
def test_a_name_that_has_no_address(error: Exception) -> None:
    def resolve(host: str, port: int) -> Sequence[tuple[Any, ...]]:
        raise error

    assert "has no address" in str(asyncio.run(refusal(Endpoint("olso", 7), resolve=resolve)))


def test_a_resolver_that_never_answers_holds_up_nobody() -> None:
    """Not even the end of the program: the thread is left behind."""
    end = threading.Event()

    def resolve(host: str, port: int) -> Sequence[tuple[Any, ...]]:
        end.wait(60)
        return []

    trouble = asyncio.run(refusal(Endpoint("oslo", 7), 0.05, resolve))
    end.set()
    assert "the resolver said nothing for 0.05 s" in str(trouble)
