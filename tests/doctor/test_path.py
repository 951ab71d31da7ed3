"""The path test over real loopback sockets, and against others that say nothing, or nonsense."""

from __future__ import annotations

import asyncio
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from doctor.ends import HURRIED, QUICK, Answer, answering, findings, listener, relay, silence, talking
from shoal.doctor import Endpoint, Finding, Limits, Offer
from shoal.doctor.path import SMALL, judge_clocks

ALL = ("path", "clocks", "way back", "packets", "bandwidth")
BRISK = Limits(connect=5.0, answer=2.0, flood=0.05)


def has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_good_path(host: str) -> None:
    if host == "::1" and not has_ipv6():
        pytest.skip("no IPv6 here")
    events: list[str] = []

    async def main() -> dict[str, Finding]:
        async with listener(host, events) as to:
            return await findings(to)

    found = asyncio.run(main())
    assert {check: finding.state for check, finding in found.items()} == dict.fromkeys(ALL, "ok")
    assert events == [f"{host} came", f"{host} is done"]


async def against(answer: Answer, limits: Limits = QUICK) -> dict[str, Finding]:
    async with answering(answer) as to:
        return await findings(to, limits)


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (silence, "said nothing for 0.3 s"),
        (talking(b"HTTP/1.1 400 Bad Request\r\n\r\n"), "another protocol"),
        (talking(b"SSH-2.0-OpenSSH_9.6"), "another protocol"),
        (talking(b""), "hung up"),
        (talking(b"x" * 1_000_000), "another protocol"),
        (talking(b'"' + b"x" * 10_000 + b'"\n'), "another protocol"),
        (talking(b"[" * 50_000 + b"\n"), "another protocol"),
        (talking(b"[1, 2]\n"), "another protocol"),
        (talking(b'{"protocol": "shoal-doctor/1", "nonce": "not mine"}\n'), "another protocol"),
        (talking(b'{"protocol": "shoal-doctor/9", "nonce": "not mine"}\n'), "another protocol"),
        (talking(b'{"protocol": "shoal-doctor/1", "busy": true}\n'), "tests another machine"),
    ],
)
def test_others_that_do_not_answer_as_they_should(answer: Answer, text: str) -> None:
    """Case A7: each failure has its own words."""
    found = asyncio.run(against(answer, HURRIED if answer is silence else QUICK))
    assert list(found) == ["path"] and found["path"].state == "fail" and text in found["path"].text


@given(words=st.binary(max_size=200))
def test_whatever_the_other_says_is_a_finding(words: bytes) -> None:
    assert asyncio.run(against(talking(words), QUICK))["path"].state == "fail"


def test_nobody_there() -> None:
    """Refused, and no such name, are different things."""

    async def refused() -> dict[str, Finding]:
        async with answering(silence) as to:
            pass
        return await findings(to)

    assert "refused the connection" in asyncio.run(refused())["path"].text
    assert "has no address" in asyncio.run(findings(Endpoint("no-such-host.invalid", 1)))["path"].text


@pytest.mark.parametrize("told", ["did not answer within 3 s", "refused the connection", "ok"])
def test_a_machine_that_cannot_be_called_back(told: str) -> None:
    """Case A4: it can dial out, and nobody can dial in; or another machine has its private address."""

    async def blocked(host: str, port: float, nonce: str, within: float) -> str:
        return told

    async def main() -> dict[str, Finding]:
        async with listener(dial_back=blocked) as to:
            return await findings(to, BRISK)

    found = asyncio.run(main())
    assert found["way back"].state == "warn" and "nobody can call them" in found["way back"].text
    assert (told if told != "ok" else "somebody else answers there") in found["way back"].text
    assert found["bandwidth"].state == "ok"


def test_the_way_back_leads_to_the_address_and_ports_that_workers_would_use() -> None:
    """Case A3: what is tested is what a firewall has been told to let in."""
    asked: list[tuple[str, float]] = []

    async def note(host: str, port: float, nonce: str, within: float) -> str:
        asked.append((host, port))
        return "never mind"

    async def main(offer: Offer) -> dict[str, Finding]:
        async with listener(dial_back=note) as to:
            return await findings(to, offer=offer)

    with socket.create_server(("127.0.0.1", 0)) as holder:
        free = holder.getsockname()[1]
        found = asyncio.run(main(Offer(ports=range(free, free + 1))))
        assert found["way back"].state == "fail" and "every port of it is taken" in found["way back"].text
    asyncio.run(main(Offer(setting="127.0.0.1", ports=range(free, free + 1))))
    assert asked == [("127.0.0.1", free)]
    found = asyncio.run(main(Offer(setting="^lo,docker")))
    assert found["way back"].state == "fail" and found["bandwidth"].state == "ok"


@pytest.mark.parametrize(("there", "back", "way"), [(2 * SMALL, None, "there"), (None, 2 * SMALL, "back")])
def test_a_path_that_swallows_large_packets(there: int | None, back: int | None, way: str) -> None:
    """Small messages pass, large ones hang: in the words that lead to the MTU, and with the direction."""

    async def main() -> dict[str, Finding]:
        async with listener() as to, answering(relay(to, there=there, back=back)) as tunnel:
            return await findings(tunnel, BRISK)

    found = asyncio.run(main())
    assert found["path"].state == "ok" and "bandwidth" not in found
    assert found["packets"].state == "fail" and f"on the way {way}" in found["packets"].text
    assert "MTU" in found["packets"].mend


def test_a_relay_that_carries_everything_is_a_good_path() -> None:
    """The relay of the test above can pass."""

    async def main() -> dict[str, Finding]:
        async with listener() as to, answering(relay(to)) as tunnel:
            return await findings(tunnel, QUICK)

    assert {finding.state for finding in asyncio.run(main()).values()} == {"ok"}


@pytest.mark.parametrize(
    ("offset", "trip", "state", "text"),
    [
        (0.2, 0.01, "ok", "0.200 s ahead (± 0.005 s)"),
        (-0.2, 0.01, "ok", "0.200 s behind"),
        (-90.0, 0.01, "warn", "90.000 s behind"),
        (1.4, 0.5, "ok", "ahead"),
        (1.6, 0.5, "warn", "ahead"),
    ],
)
def test_clocks(offset: float, trip: float, state: str, text: str) -> None:
    found = judge_clocks(offset, trip)
    assert found.state == state and text in found.text
