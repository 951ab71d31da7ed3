from __future__ import annotations

import asyncio

import pytest

from doctor.ends import answering, silence, talking
from shoal.doctor import Endpoint
from shoal.doctor.way_back import call_back, open_door


def test_a_door_opens_to_who_knows_the_nonce() -> None:
    async def main(nonce: str | None) -> tuple[str, bool]:
        async with open_door("127.0.0.1", None, 5.0) as door:
            said = await call_back(door.at.host, door.at.port, nonce or door.nonce, 5.0)
            return said, await door.opened(5.0 if nonce is None else 0.0)

    assert asyncio.run(main(None)) == ("ok", True)
    assert asyncio.run(main("another")) == ("another machine has that address, too", False)


def test_nothing_is_sent_to_a_stranger() -> None:
    """A listener can be asked to dial anybody: it waits for the right words first."""
    heard = bytearray()

    async def stranger(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'{"door": "not the nonce"}\n')
        heard.extend(await reader.read())
        writer.close()

    async def main() -> str:
        async with answering(stranger) as to:
            said = await call_back(to.host, to.port, "nonce", 5.0)
        return said

    assert asyncio.run(main()) == "another machine has that address, too"
    assert heard == b""


@pytest.mark.parametrize(
    ("host", "port", "said"),
    [
        ("localhost", 40000, "no address"),
        ("", 40000, "no address"),
        ("127.0.0.1", 25, "not called"),
        ("127.0.0.1", 0, "not called"),
        ("127.0.0.1", 65536, "not called"),
    ],
)
def test_what_is_never_dialled(host: str, port: float, said: str) -> None:
    assert said in asyncio.run(call_back(host, port, "nonce", 1.0))


def test_what_hinders_it_is_said() -> None:
    async def main() -> tuple[str, str, str]:
        async with answering(silence) as closed:
            mute = await call_back(closed.host, closed.port, "nonce", 0.2)
        async with answering(talking(b"220 mail\r\n")) as other:
            strange = await call_back(other.host, other.port, "nonce", 0.2)
        return mute, strange, await call_back(closed.host, closed.port, "nonce", 5.0)

    mute, strange, refused = asyncio.run(main())
    assert "said nothing for 0.2 s" in mute and "said nothing" in strange and "refused" in refused


def test_a_door_ignores_strangers() -> None:
    async def main() -> bool:
        async with open_door("127.0.0.1", None, 5.0) as door:
            at: Endpoint = door.at
            reader, writer = await asyncio.open_connection(at.host, at.port)
            await reader.readline()
            writer.write(b'{"here": "a guess"}\n')
            await reader.read()
            writer.close()
            return await door.opened(0.0)

    assert asyncio.run(main()) is False
