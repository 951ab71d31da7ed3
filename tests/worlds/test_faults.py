"""Planned faults: crashes, frozen peers, delays; and what the others notice, when."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from shoal.errors import PeerLost, UserError
from shoal.world import Tag, Work, World, only_bytes
from shoal.worlds.faults import DETECTION_S, Crash, Delay, Freeze, Jitter, Sleep
from shoal.worlds.simulation import Simulation
from worlds.clusters import flat
from worlds.suite import number, place


async def steps(world: World) -> list[int]:
    """Everybody sends its number to everybody in every step; ends with the step in which somebody was lost."""
    done = []
    for t in range(100):
        world.event("step", step=t)
        await world.run(lambda: None, Work("compute", flops=1e8))
        sends = [world.spawn(world.send(p, Tag("x", t), only_bytes(100)), "x") for p in world.peers if p != world.me]
        for peer in world.peers:
            if peer != world.me:
                await world.recv(Tag("x", t), source=peer)
        for send in sends:
            await send
        done.append(t)
    return done


def test_the_others_notice_a_crash_within_the_detection_time_and_name_peer_and_step() -> None:
    simulation = Simulation(flat(3, latency=1e-3), faults=[Crash("p0001", at=5.05)])
    got: dict[str, Any] = simulation.run(steps, return_exceptions=True)
    for peer in ("p0000", "p0002"):
        assert isinstance(got[peer], PeerLost)
        assert (got[peer].peer, got[peer].step) == ("p0001", 49)
    assert isinstance(got["p0001"], PeerLost)
    assert "planned" in str(got["p0001"])
    assert simulation.now == pytest.approx(5.05 + DETECTION_S)


def test_a_crash_can_be_planned_for_a_step() -> None:
    got: dict[str, Any] = Simulation(flat(3), faults=[Crash("p0002", step=7)]).run(steps, return_exceptions=True)
    assert (got["p0000"].peer, got["p0000"].step) == ("p0002", 7)


def test_a_planned_crash_is_no_failure_of_the_run() -> None:
    async def program(world: World) -> str:
        try:
            await world.recv(Tag("x", 3), source=world.peers[1])
        except PeerLost as lost:
            return lost.why
        return ""

    async def survive(world: World) -> str:
        if place(world) == 1:
            await world.sleep(100.0)
        return await program(world)

    got = Simulation(flat(3), faults=[Crash("p0001", at=2.0)]).run(survive)
    assert got == {"p0000": "its connection closed", "p0002": "its connection closed"}


def test_a_survivor_that_does_not_expect_it_fails_the_run() -> None:
    with pytest.raises(PeerLost, match="'p0001'") as caught:
        Simulation(flat(2), faults=[Crash("p0001", at=5.0)]).run(steps)
    assert "p0000" in caught.value.__notes__[0]


@pytest.mark.parametrize("expand", [False, True])
@pytest.mark.parametrize("at", [0.5, 1.5, 2.5])
def test_a_crash_before_or_during_a_sum_is_noticed(expand: bool, at: float) -> None:
    async def program(world: World) -> float:
        await world.sleep(float(place(world)))
        x = torch.ones(10**6)
        await world.collective("sum", x, world.peers, Tag("sum", 4))
        return x[0].item()

    simulation = Simulation(flat(3), faults=[Crash("p0001", at=at)], expand_collectives=expand)
    got: dict[str, Any] = simulation.run(program, return_exceptions=True)
    for peer in ("p0000", "p0002"):
        assert isinstance(got[peer], PeerLost)
        assert got[peer].step == 4


@pytest.mark.parametrize("expand", [False, True])
def test_a_sum_that_a_peer_joined_and_then_died_in_is_never_finished(expand: bool) -> None:
    """The last to join comes before anybody has noticed the crash, and the links are fast enough to be done by then."""

    async def program(world: World) -> float:
        if place(world) == 0:
            await world.sleep(1.0 + DETECTION_S / 2)
        x = torch.ones(4)
        await world.collective("sum", x, world.peers, Tag("sum", 4))
        return x[0].item()

    simulation = Simulation(flat(3), faults=[Crash("p0001", at=1.0)], expand_collectives=expand)
    got: dict[str, Any] = simulation.run(program, return_exceptions=True)
    for peer in ("p0000", "p0002"):
        assert isinstance(got[peer], PeerLost)
        assert got[peer].step == 4
        assert "p0001" in str(got[peer])  # as the one that is lost, or as why the one before me on the ring failed


def test_what_had_left_a_crashed_peer_arrives_and_what_had_not_does_not() -> None:
    async def program(world: World) -> list[str]:
        first, second = world.peers
        if world.me == second:
            await world.send(first, Tag("left"), number(1))
            await world.send(first, Tag("cut"), only_bytes(10**7))
            return []
        out = []
        for kind in ("left", "cut"):
            try:
                await world.recv(Tag(kind), source=second)
                out.append(kind)
            except PeerLost:
                out.append("lost")
        return out

    got = Simulation(flat(2, latency=0.01), faults=[Crash("p0001", at=0.005)]).run(program)
    assert got["p0000"] == ["left", "lost"]


def test_a_send_to_a_crashed_peer_fails_and_frees_the_link() -> None:
    async def program(world: World) -> Any:
        if place(world) == 1:
            await world.sleep(50.0)
        if place(world) == 2:
            return None
        try:
            await world.send(world.peers[1], Tag("x", 2), only_bytes(10**7))
        except PeerLost as lost:
            at = world.now()
            with pytest.raises(PeerLost):
                await world.send(world.peers[1], Tag("x", 3), only_bytes(1))
            start = world.now()
            await world.send(world.peers[2], Tag("y"), only_bytes(10**6))
            return lost.peer, lost.step, at, world.now() - start
        return "sent"

    cluster = flat(3, up=1e6)
    with pytest.raises(PeerLost):  # peer 2 has long finished
        Simulation(cluster, faults=[Crash("p0001", at=1.0)]).run(program)

    async def patient(world: World) -> Any:
        if place(world) == 2:
            return (await world.recv(Tag("y"), source=world.peers[0])).body.nbytes
        return await program(world)

    got = Simulation(cluster, faults=[Crash("p0001", at=1.0)]).run(patient)
    assert got["p0000"] == ("p0001", 2, pytest.approx(1.0 + DETECTION_S), pytest.approx(1.0))


def test_a_crashed_peer_does_nothing_more_not_even_in_its_clean_up() -> None:
    wrote = []

    async def program(world: World) -> str:
        if place(world) == 1:
            try:
                await world.run(lambda: wrote.append("run"), Work("long", flops=1e10))
            finally:
                await world.send(world.peers[0], Tag("good-bye"), number(0))
        with pytest.raises(PeerLost):
            await world.recv(Tag("good-bye"), source=world.peers[1])
        return "survived"

    simulation = Simulation(flat(2), faults=[Crash("p0001", at=0.5)], fuzz=True, network_seed=4)
    assert simulation.run(program) == {"p0000": "survived"}
    assert wrote == []


def test_a_short_freeze_only_takes_time() -> None:
    whole = Simulation(flat(2))
    whole.run(steps)
    frozen = Simulation(flat(2), faults=[Freeze("p0001", at=3.03, seconds=4.0)])
    got = frozen.run(steps)
    assert got["p0000"] == list(range(100))
    assert frozen.now == pytest.approx(whole.now + 4.0, abs=1e-3)


def test_a_silent_peer_is_given_up_at_the_peer_deadline() -> None:
    simulation = Simulation(flat(3), faults=[Freeze("p0002", at=3.03, seconds=60.0)], peer_deadline=15.0)
    got: dict[str, Any] = simulation.run(steps, return_exceptions=True)
    for peer in ("p0000", "p0001"):
        assert (got[peer].peer, got[peer].step) == ("p0002", 30)
        assert got[peer].why == "silent for 15 s"
        assert got[peer].__notes__ == [f"in worker {peer!r} at 18.030000 s"]
    assert got["p0002"].peer in ("p0000", "p0001")
    assert simulation.now >= 63.03


def test_sleep_postpones_what_happens_and_stretches_what_takes_time() -> None:
    sleep = Sleep([Freeze("a", 10.0, 5.0), Freeze("a", 1.0, 2.0)])
    assert [sleep.awake(t) for t in (0.0, 1.0, 2.9, 3.0, 12.0, 15.0)] == [0.0, 3.0, 3.0, 3.0, 15.0, 15.0]
    assert sleep.after(0.0, 1.0) == 1.0
    assert sleep.after(0.0, 1.5) == 3.5
    assert sleep.after(3.0, 8.0) == 16.0
    assert sleep.after(0.0, 9.0) == 16.0
    assert sleep.after(20.0, 9.0) == 29.0


def test_delays_let_messages_overtake_each_other_but_not_their_own_tag() -> None:
    async def program(world: World) -> list[int]:
        if place(world) == 0:
            for n in range(40):
                await world.send(world.peers[1], Tag("x", n % 2), number(n))
            return []
        order = [await world.recv_any("x") for _ in range(40)]
        return [int(message.body.tensors[0].item()) for message in order]

    order = Simulation(flat(2), faults=[Delay(1.0, seed=3)]).run(program)["p0001"]
    assert order != sorted(order)
    for parity in (0, 1):
        assert [n for n in order if n % 2 == parity] == list(range(parity, 40, 2))


def test_misspelt_peers_are_refused() -> None:
    """Case B2: a name that nothing has is not silently without effect."""
    for wrong in (
        Simulation(flat(2), faults=[Crash("p0009", at=1.0)]),
        Simulation(flat(2), faults=[Freeze("p0009", 1.0, 1.0)]),
        Simulation(flat(2), jitter=Jitter(straggler="p0009")),
    ):
        with pytest.raises(UserError, match="p0009"):
            wrong.run(steps)


def test_a_crash_needs_a_time_or_a_step() -> None:
    for wrong in ({}, {"at": 1.0, "step": 2}):
        with pytest.raises(ValueError, match="Crash"):
            Crash("a", **wrong)


@pytest.mark.parametrize("seed", range(30))
def test_a_crash_at_any_moment_leaves_nobody_waiting(seed: int) -> None:
    """Every survivor ends with the lost peer's name, whatever it was doing, under hostile scheduling."""
    at = 0.37 * seed
    faults = [Crash("p0001", at=at), Delay(0.3, seed)]
    simulation = Simulation(flat(4, latency=1e-3), faults=faults, fuzz=True, network_seed=seed)
    got: dict[str, Any] = simulation.run(steps, return_exceptions=True)
    assert all(isinstance(outcome, PeerLost) for outcome in got.values())
    assert simulation.now < at + 1.0
