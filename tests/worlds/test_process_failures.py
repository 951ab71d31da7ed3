"""What real processes do when one of them is killed, hangs, fails or never comes; and what they leave behind."""

from __future__ import annotations

import asyncio
import signal
from functools import partial
from typing import Any

import pytest
import torch

from shoal.errors import PeerLost
from shoal.world import Peer, Tag, Work, World, dense
from worlds.processes import Crowd, Ending

NAMES = ["a", "b", "c"]
TRANSPORTS = ["streams", "torch-distributed"]
LONG = 60.0


# ------------------------------------------------------------------------------------------------------- programs


async def arrive(world: World, *, me_waits: bool = True) -> None:
    """Tell everybody that this peer is running, and wait until everybody is."""
    for peer in world.peers:
        if peer != world.me:
            await world.send(peer, Tag("here"), dense(torch.zeros(1)))
    for peer in world.peers:
        if peer != world.me and me_waits:
            await world.recv(Tag("here"), source=peer)


async def wait_for_ever(world: World, *, who: str) -> None:
    """Everybody waits for something that nobody sends: from `who`, from the next one, or for nobody at all."""
    world.event("step", step=7)
    await arrive(world)
    world.event("running")
    if who == "sleep":
        await world.sleep(LONG)
    elif who == "compute":
        work = Work("compute", flops=1e9)
        async for _ in world.reach(spin, work):
            pass
    else:
        source = who if who != world.me else next(peer for peer in world.peers if peer != who)
        await world.recv(Tag("never", 7), source=source, within=LONG)


def spin(mark: Any) -> None:
    """Computes for a long time, and marks often."""
    x = torch.ones(64, 64)
    for n in range(2_000_000):
        x = (x @ x).clamp_(-1, 1)
        mark(n)


async def busy(world: World, *, seconds: float) -> float:
    """Peer b computes longer than the deadline of silence, and then sends."""
    if world.me == "b":
        x = await world.run(partial(matmuls, world, seconds), Work("forward", flops=1e9))
        await world.send("a", Tag("late"), dense(x))
        return 0.0
    if world.me == "a":
        return (await world.recv(Tag("late"), source="b", within=LONG)).body.tensors[0].item()
    return 0.0


def matmuls(world: World, seconds: float) -> torch.Tensor:
    x, until = torch.ones(200, 200), world.now() + seconds
    while world.now() < until:
        x = (x @ x).clamp_(-1, 1)
    return x.mean()


async def fail_at_step(world: World, *, step: int) -> None:
    await arrive(world)
    for t in range(step + 1):
        world.event("step", step=t)
        if world.me == "b" and t == step:
            raise ZeroDivisionError("the model's own mistake")
        for peer in world.peers:
            if peer != world.me:
                await world.send(peer, Tag("x", t), dense(torch.zeros(1)))
        for peer in world.peers:
            if peer != world.me:
                await world.recv(Tag("x", t), source=peer)


async def cancelled(world: World) -> None:
    await arrive(world)
    if world.me == "b":
        raise asyncio.CancelledError
    await world.recv(Tag("never"), source="b", within=LONG)


async def exchange_big(world: World, *, rounds: int = 2) -> float:
    x = torch.full((300_000,), float(world.peers.index(world.me)))
    total = 0.0
    for t in range(rounds):
        sends = [world.spawn(world.send(p, Tag("x", t), dense(x)), "send") for p in world.peers if p != world.me]
        for peer in world.peers:
            if peer != world.me:
                total += (await world.recv(Tag("x", t), source=peer)).body.tensors[0][-1].item()
        for send in sends:
            await send
        await world.run(lambda: torch.ones(300, 300) @ torch.ones(300, 300), Work("compute", flops=1e8))
    return total


def lost(ending: Ending) -> PeerLost:
    assert isinstance(ending.error, PeerLost), ending.trace
    return ending.error


def nothing_is_left(endings: dict[Peer, Ending]) -> None:
    """Threads, open files and listening ports are those of a process that has never run anything."""
    for ending in endings.values():
        assert ending.after == ending.before


# ---------------------------------------------------------------------------------------------------------- tests


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("who", ["a", "c", "sleep", "compute"])
def test_a_killed_peer_is_named_by_all_others_at_once(crowd: Crowd, transport: str, who: str) -> None:
    """kill -9 of a peer: those who wait for it and those who do not stop, name it and its step, and leave nothing."""
    # Far below the deadline of silence, which is what would end this if the closed connection did not.
    with crowd.begin(partial(wait_for_ever, who=who), NAMES, transport=transport, peer_deadline=50.0) as launch:
        launch.until_running()
        launch.signal("c", signal.SIGKILL)
        endings = launch.wait()
    assert sorted(endings) == ["a", "b"]
    for ending in endings.values():
        error = lost(ending)
        assert (error.peer, error.step) == ("c", 7)
        assert "silent" not in error.why
        gone = [event for event in ending.events if event.kind == "peer-lost"]
        assert gone[0].fields["peer"] == "c" and gone[0].fields["step"] == 7
    nothing_is_left(endings)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_silent_peer_is_given_up_after_the_deadline(crowd: Crowd, transport: str) -> None:
    """kill -STOP of a peer: its connections stay open, and nothing comes."""
    with crowd.begin(partial(wait_for_ever, who="c"), NAMES, transport=transport, peer_deadline=2.0) as launch:
        launch.until_running()
        launch.signal("c", signal.SIGSTOP)
        endings = launch.wait(["a", "b"])
        launch.discard("c")
    for ending in endings.values():
        error = lost(ending)
        assert (error.peer, error.step) == ("c", 7)
        assert "silent for 2 s" in error.why
    nothing_is_left(endings)


def test_a_peer_that_was_given_up_learns_why(crowd: Crowd) -> None:
    """A machine that slept wakes up: it ends and says what the others think of it, and leaves nothing."""
    with crowd.begin(partial(wait_for_ever, who="c"), NAMES, peer_deadline=2.0) as launch:
        launch.until_running()
        launch.signal("c", signal.SIGSTOP)
        launch.wait(["a", "b"])
        launch.signal("c", signal.SIGCONT)
        endings = launch.wait(["c"])
    assert "gave this peer up: silent for 2 s" in lost(endings["c"]).why
    nothing_is_left(endings)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_peer_that_computes_for_long_is_not_silent(crowd: Crowd, transport: str) -> None:
    """Case C12: twice the deadline of silence in one computation."""
    endings = crowd.run(partial(busy, seconds=4.0), NAMES, transport=transport, peer_deadline=2.0)
    assert [ending.error for ending in endings.values()] == [None] * 3
    assert endings["a"].value is not None


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_failure_is_told_to_all_with_its_step(crowd: Crowd, transport: str) -> None:
    endings = crowd.run(partial(fail_at_step, step=3), NAMES, transport=transport)
    assert isinstance(endings["b"].error, ZeroDivisionError)
    for peer in ("a", "c"):
        error = lost(endings[peer])
        assert error.peer == "b"
        assert error.step in (2, 3)  # where this peer was
        assert error.why.startswith(
            "has failed at step 3: ZeroDivisionError: the model's own mistake"
        )  # from itself, or from another
    nothing_is_left(endings)


def test_a_cancelled_program_leaves_nothing(crowd: Crowd) -> None:
    endings = crowd.run(cancelled, NAMES)
    assert isinstance(endings["b"].error, asyncio.CancelledError)
    assert "was interrupted" in lost(endings["a"]).why
    nothing_is_left(endings)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_finished_run_leaves_nothing(crowd: Crowd, transport: str) -> None:
    endings = crowd.run(exchange_big, NAMES, transport=transport)
    assert [endings[peer].value for peer in NAMES] == [6.0, 4.0, 2.0]
    nothing_is_left(endings)


@pytest.mark.slow
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_hundred_runs_leave_nothing(crowd: Crowd, transport: str) -> None:
    """Case C16: the number of open files is constant."""
    for _ in range(100):
        nothing_is_left(crowd.run(partial(exchange_big, rounds=1), NAMES, transport=transport))


@pytest.mark.slow
def test_missing_peers_are_named_at_the_start(crowd: Crowd) -> None:
    """Case A11: two of four come; both leave soon after the deadline and name the other two."""
    names = [*NAMES, "d"]
    endings = crowd.run(exchange_big, names, start_deadline=15.0, absent=("b", "d"))
    assert sorted(endings) == ["a", "c"]
    for ending in endings.values():
        assert lost(ending).peer == "b"
        assert "missing are b, d of a, b, c, d" in lost(ending).why
    nothing_is_left(endings)
