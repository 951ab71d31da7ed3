"""How processes find one another: addresses, ports, names that are missing, doubled or of another run."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Coroutine, Iterable, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import pytest

from shoal.errors import BadMessage, PeerLost, UserError
from shoal.transport.engines import HashStore
from shoal.worlds import process_addresses as addresses
from shoal.worlds.rendezvous import Coordinator, Rendezvous, from_environment, keep_store, meet

T = TypeVar("T")
PATIENCE = 90.0  # torch's store looks up names backwards, which takes long where the name service is poor


def run(test: Coroutine[Any, Any, T]) -> T:
    async def bounded() -> T:
        async with asyncio.timeout(PATIENCE):
            return await test

    return asyncio.run(bounded())


def gather(where: Coordinator, names: Sequence[str], come: Iterable[str] | None = None, **more: Any) -> list[Any]:
    """`meet` of those who `come` (all of `names` by default): what each found, or how it failed."""

    async def all_of_them() -> list[Any]:
        calls = [meet(where, me=me, peers=names, **{"deadline": 40.0, **more}) for me in come or names]
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, Rendezvous):
                outcome.close()
        return outcomes

    return run(all_of_them())


def free_port(host: str = "127.0.0.1") -> int:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as sock:
        sock.bind((host, 0))
        return sock.getsockname()[1]


@contextmanager
def listener(host: str = "127.0.0.1") -> Any:
    with socket.socket() as sock:
        sock.bind((host, 0))
        sock.listen()
        yield sock.getsockname()[1]


# ------------------------------------------------------------------------------------------------------ addresses


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
def test_all_find_one_another_wherever_the_store_is(host: str) -> None:
    """Case A5: an IPv4 address, a name, an IPv6 address."""
    with keep_store(host) as where:
        found = gather(where, ["a", "b", "c"])
    assert len({meeting.hello.run for meeting in found}) == 1
    for meeting in found:
        assert addresses.is_loopback(meeting.host)
        assert meeting.peers == ("a", "b", "c")


def test_the_first_peer_keeps_the_store_if_nobody_else_does() -> None:
    where = Coordinator(host="127.0.0.1", port=free_port())
    found = gather(where, ["a", "b"])
    assert {meeting.hello.peer for meeting in found} == {"a", "b"}


def test_a_peer_offers_the_address_of_its_route_to_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """Case A1: whatever the machine's name resolves to."""
    others = [a for known in addresses.interfaces().values() for a in known if not addresses.is_loopback(a)]
    if not others:
        pytest.skip("this machine has no address but loopback ones")
    monkeypatch.setattr(socket, "gethostname", lambda: "localhost")
    with keep_store(others[0]) as where:
        for meeting in gather(where, ["a", "b"]):
            assert meeting.host == others[0]


def test_loopback_is_refused_when_another_machine_joins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Case A1: all peers stop at once and name the address and the settings that change it."""
    machines = iter(["this", "another"])
    monkeypatch.setattr(addresses, "machine_name", lambda: next(machines))
    with keep_store() as where:
        for outcome in gather(where, ["a", "b"]):
            assert isinstance(outcome, UserError)
            assert "'a' offers 127.0.0.1, which no other machine can reach" in str(outcome)
            assert "SHOAL_INTERFACE" in str(outcome) and "MASTER_ADDR" in str(outcome)


def test_peers_of_two_address_families_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Case A5: both families and both peers are named."""
    offers = iter(["127.0.0.1", "::1"])
    monkeypatch.setattr(addresses, "offered_host", lambda route, setting: next(offers))
    with keep_store() as where:
        for outcome in gather(where, ["a", "b"]):
            assert isinstance(outcome, UserError)
            assert "IPv4 and IPv6" in str(outcome) and "127.0.0.1" in str(outcome) and "::1" in str(outcome)


@pytest.mark.parametrize("setting", ["nosuch0", "^lo,docker", "lo,eth0", "203.0.113.7", "fe80::1"])
def test_a_wrong_interface_lists_those_that_exist(setting: str) -> None:
    """Case A2: an unknown name, an exclusion list, a list, an address of another machine."""
    with pytest.raises(UserError) as error:
        addresses.offered_host("127.0.0.1", setting)
    text = str(error.value)
    assert "SHOAL_INTERFACE" in text and setting in text
    for name in addresses.interfaces():
        assert name in text


@pytest.mark.parametrize("setting", ["lo", "127.0.0.1", "[::1]", "::1", "127.0.0.2"])
def test_an_interface_or_an_address_of_this_machine_is_taken(setting: str) -> None:
    """Case A2: the environment is each host's own, so hosts may differ."""
    assert addresses.is_loopback(addresses.offered_host("192.0.2.1", setting))


def test_the_interfaces_address_has_the_family_of_the_route() -> None:
    known = addresses.interfaces()["lo"]
    for route in ("192.0.2.1", "2001:db8::1"):
        offered = addresses.offered_host(route, "lo")
        if any(addresses.family(address) == addresses.family(route) for address in known):
            assert addresses.family(offered) == addresses.family(route)


# ---------------------------------------------------------------------------------------------------------- ports


def test_listening_ports_lie_in_the_range(monkeypatch: pytest.MonkeyPatch) -> None:
    """Case A3."""
    first = free_port()
    allowed = range(first, min(first + 20, 65536))
    monkeypatch.setenv("SHOAL_PORT_RANGE", f"{allowed.start}-{allowed.stop - 1}")

    async def test() -> None:
        with keep_store() as where:
            found = await asyncio.gather(*(meet(where, me=me, peers=["a", "b", "c"]) for me in "abc"))
        sockets = [meeting.listen() for meeting in found]
        ports = {sock.getsockname()[1] for sock in sockets}
        for sock, meeting in zip(sockets, found, strict=True):
            sock.close()
            meeting.close()
        assert len(ports) == 3
        assert all(port in allowed for port in ports)

    run(test())


def test_too_small_a_range_says_how_many_ports_are_needed() -> None:
    """Case A3."""
    with pytest.raises(UserError, match=r"SHOAL_PORT_RANGE: 2 ports are too few.*3 ports are needed on this machine"):
        addresses.listen("127.0.0.1", range(40000, 40002), needed=3)


def test_a_range_that_is_taken_says_so() -> None:
    with listener() as port, pytest.raises(UserError, match="SHOAL_PORT_RANGE: every port of it is taken"):
        addresses.listen("127.0.0.1", range(port, port + 1), needed=1)


@pytest.mark.parametrize("text", ["40000", "40050-40000", "a-b", "0-10", "40000-70000", "40000-"])
def test_a_malformed_range_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="SHOAL_PORT_RANGE"):
        addresses.port_range(text)


def test_an_engine_that_chooses_ports_itself_is_refused_with_a_range(monkeypatch: pytest.MonkeyPatch) -> None:
    """Case A3: Gloo cannot be told where to listen."""
    monkeypatch.setenv("SHOAL_PORT_RANGE", "40000-40100")

    async def test() -> None:
        meeting = await meet(None, me="a", peers=["a"])
        with pytest.raises(UserError, match="Gloo chooses its ports itself"):
            meeting.refuse_port_range("Gloo")
        meeting.close()

    run(test())


def test_a_store_outside_the_range_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_PORT_RANGE", "40000-40100")
    (outcome,) = gather(Coordinator(host="127.0.0.1", port=50000), ["a"])
    assert isinstance(outcome, UserError) and "MASTER_PORT" in str(outcome)


def test_a_taken_port_names_port_and_owner() -> None:
    """Case A6: a second run with the same options fails at once; it says who holds the port."""
    with keep_store() as where:
        (outcome,) = gather(Coordinator(host=where.host, port=where.port), ["a"])
        assert isinstance(outcome, UserError)
        text = str(outcome)
        assert "MASTER_PORT" in text and str(where.port) in text
        assert "process " in text and "(" in text


# ---------------------------------------------------------------------------------------------------------- names


def test_missing_peers_are_named() -> None:
    """Case A11."""

    async def test() -> None:
        store, names = HashStore(), ["a", "b", "c", "d"]
        come = [Rendezvous(store, me=me, peers=names, host="127.0.0.1", where="here", deadline=0.5) for me in "ac"]
        for outcome in await asyncio.gather(*(meeting.join() for meeting in come), return_exceptions=True):
            assert isinstance(outcome, PeerLost)
            assert outcome.peer == "b"
            assert outcome.why == "did not come to here within 0.5 s; missing are b, d of a, b, c, d"

    run(test())


def test_a_missing_keeper_of_the_store_is_named() -> None:
    """Case A11: the address and the reason are there too."""
    (outcome,) = gather(Coordinator(host="127.0.0.1", port=free_port()), ["a", "b"], come=["b"], deadline=0.3)
    assert isinstance(outcome, PeerLost)
    assert outcome.peer == "a"
    assert "127.0.0.1" in outcome.why and "refused" in outcome.why


def test_a_name_that_nobody_knows_is_told() -> None:
    where = Coordinator(host="no-such-host.invalid", port=29500, kept=True)
    (outcome,) = gather(where, ["a", "b"], come=["a"], deadline=0.3)
    assert isinstance(outcome, UserError)
    assert "no-such-host.invalid" in str(outcome)


def test_a_second_process_of_one_name_is_refused_and_the_first_goes_on() -> None:
    """Case A10: the message says which process holds the name."""

    async def test() -> None:
        store, names = HashStore(), ["a", "b"]
        found = [Rendezvous(store, me=me, peers=names, host="127.0.0.1") for me in names]
        await asyncio.gather(*(meeting.join() for meeting in found))
        with pytest.raises(UserError, match=rf"process {os.getpid()} on .* already is peer 'a' of the run"):
            await Rendezvous(store, me="a", peers=names, host="127.0.0.1").join()
        told = await asyncio.gather(*(meeting.exchange("topic", meeting.hello.peer) for meeting in found))
        assert told == [{"a": "a", "b": "b"}] * 2
        for meeting in found:
            meeting.close()

    run(test())


def test_a_process_of_another_run_is_refused() -> None:
    """Case A6: it was started with other peers, and the run that is going on is untouched."""

    async def test() -> None:
        with keep_store() as where:
            found = await asyncio.gather(*(meet(where, me=me, peers=["a", "b"]) for me in "ab"))
            with pytest.raises(UserError, match="is one of a, b"):
                await meet(where, me="c", peers=["a", "b", "c"])
            told = await asyncio.gather(*(meeting.exchange("topic", meeting.hello.peer * 2) for meeting in found))
            assert told == [{"a": "aa", "b": "bb"}] * 2
            for meeting in found:
                meeting.close()

    run(test())


def test_two_runs_may_use_one_store() -> None:
    with keep_store() as where:
        runs = [gather(Coordinator(host=where.host, port=where.port, kept=True, attempt=str(n)), "ab") for n in (0, 1)]
    assert len({meeting.hello.run for found in runs for meeting in found}) == 2


def test_peers_with_different_plans_refuse_each_other() -> None:
    """Case D9: all find out before the first exchange."""

    async def test() -> list[Any]:
        with keep_store() as where:
            plans = {"a": "1111", "b": "1111", "c": "2222"}
            calls = [meet(where, me=me, peers=list(plans), digest=plan) for me, plan in plans.items()]
            return await asyncio.gather(*calls, return_exceptions=True)

    outcomes = run(test())
    for outcome, blamed in zip(outcomes, "cca", strict=True):
        assert isinstance(outcome, BadMessage)
        assert outcome.peer == blamed
        assert "1111" in outcome.why and "2222" in outcome.why


# ---------------------------------------------------------------------------------------------------- environment


def test_the_environment_of_torchrun_is_understood() -> None:
    env = {
        "MASTER_ADDR": "[fd00::2]",
        "MASTER_PORT": "29500",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RUN_ID": "job",
        "TORCHELASTIC_RESTART_COUNT": "1",
    }
    assert from_environment(env) == Coordinator(host="fd00::2", port=29500, kept=True, attempt="job/1")
    assert str(from_environment(env)) == "[fd00::2]:29500"
    assert not from_environment({"MASTER_ADDR": "a", "MASTER_PORT": "1"}).kept


def test_the_environment_survives_the_way_to_a_child() -> None:
    with keep_store() as where:
        assert from_environment(where.environment()) == where


@pytest.mark.parametrize(
    ("env", "key"),
    [
        ({}, "MASTER_ADDR"),
        ({"MASTER_ADDR": "a"}, "MASTER_PORT"),
        ({"MASTER_ADDR": "a", "MASTER_PORT": "0"}, "MASTER_PORT"),
    ],
)
def test_an_unusable_environment_names_the_variable(env: dict[str, str], key: str) -> None:
    """Case A8: port 0 cannot be told to others."""
    with pytest.raises(UserError, match=key):
        from_environment(env)
