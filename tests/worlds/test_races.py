"""Races that real processes show once a week: found by random points of execution and by checking what is lent."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import torch
from torch import Tensor

from shoal.errors import Race
from shoal.world import Tag, Work, World, dense
from shoal.worlds.faults import Jitter
from shoal.worlds.simulation import Simulation
from worlds.clusters import flat

COMPUTE, UPDATE = Work("compute", flops=1e7), Work("update", flops=1e6, lane="update")
SEEDS = range(25)


async def exchange(world: World, x: Tensor, t: int, *, wait: bool) -> Tensor:
    """Sends `x` to the other peer and returns the mean of mine and the other's."""
    other = world.peers[world.me == world.peers[0]]
    mine = await world.run(x.clone, Work("copy", lane="serve"))
    send = world.spawn(world.send(other, Tag("mix", t), dense(x)), "mix")
    got = (await world.recv(Tag("mix", t), source=other)).one(x)
    if wait:
        await send
    return await world.run(lambda: (mine + got) / 2, Work("mean", lane="serve"))


async def right(world: World) -> list[float]:
    """Adapt while combine: the mix of step t travels while step t computes, and starts after the update of t - 1."""
    x = torch.full((1000,), float(world.peers.index(world.me)))
    out = []
    mix = world.spawn(exchange(world, x, 0, wait=True), "mix")
    for t in range(5):
        grad = await world.run(lambda: torch.cos(x), COMPUTE)
        mixed = await mix
        await world.run(lambda grad=grad, mixed=mixed: x.copy_(mixed).sub_(grad), UPDATE)
        out.append(x[0].item())
        mix = world.spawn(exchange(world, x, t + 1, wait=True), "mix")
    await mix
    return out


async def send_not_awaited(world: World) -> list[float]:
    """Planted: the update writes to the tensor while it is still being sent."""
    x = torch.full((1000,), float(world.peers.index(world.me)))
    for t in range(5):
        mixed = await exchange(world, x, t, wait=False)
        await world.run(lambda mixed=mixed: x.copy_(mixed).sub_(1), UPDATE)
    return []


async def mix_before_update(world: World) -> list[float]:
    """Planted: the mix of the next step is launched before the update has been done."""
    x = torch.full((1000,), float(world.peers.index(world.me)))
    mix = world.spawn(exchange(world, x, 0, wait=True), "mix")
    for t in range(5):
        mixed = await mix
        update = world.spawn(world.run(lambda mixed=mixed: x.copy_(mixed).sub_(1), UPDATE), "update")
        mix = world.spawn(exchange(world, x, t + 1, wait=True), "mix")
        await update
    await mix
    return []


async def reads_while_computing(world: World) -> list[float]:
    """Planted: one lane reads what another writes, without waiting for it. No tensor is lent: only results differ."""
    x = torch.zeros(10)
    out = []
    for _ in range(5):
        read = world.spawn(world.run(lambda: x.sum().item(), COMPUTE), "read")
        await world.run(lambda: x.add_(1), UPDATE)
        out.append(await read)
    return out


def rehearse(program: Callable[[World], Coroutine[Any, Any, list[float]]], seed: int, n: int = 2) -> list[float]:
    simulation = Simulation(
        flat(n, latency=1e-4, bandwidth=1e6),
        network_seed=seed,
        fuzz=True,
        jitter=Jitter(kind="log-normal", spread=0.5, seed=seed),
    )
    return simulation.run(program)["p0000"]


def found(program: Callable[[World], Coroutine[Any, Any, list[float]]]) -> int:
    """In how many of the seeds the world reports a race."""
    count = 0
    for seed in SEEDS:
        try:
            rehearse(program, seed)
        except Race as race:
            count += all(word in str(race) for word in ("'mix'", "'p0000'", "'p0001'"))
    return count


def test_a_correct_protocol_is_never_accused_and_its_results_are_always_the_same() -> None:
    assert len({tuple(rehearse(right, seed)) for seed in SEEDS}) == 1


def test_a_send_that_is_not_awaited_is_found() -> None:
    """The receiver has its copy one latency after the last byte left, so only asymmetry makes this race show."""
    cluster = flat(2, link=lambda a, b: (1e-4, 1e6 if a == 0 else 3e5))
    for seed in SEEDS:
        with pytest.raises(Race, match="await the send before writing"):
            Simulation(cluster, network_seed=seed, fuzz=True).run(send_not_awaited)


def test_a_mix_that_starts_before_the_update_is_found() -> None:
    assert found(mix_before_update) >= 0.9 * len(SEEDS)


def test_unordered_reads_and_writes_show_as_different_results() -> None:
    assert len({tuple(rehearse(reads_while_computing, seed, n=1)) for seed in SEEDS}) > 1


def test_a_race_that_nobody_awaits_fails_its_worker() -> None:
    async def program(world: World) -> None:
        if world.me == world.peers[1]:
            await world.recv(Tag("x"), source=world.peers[0])
            return
        x = torch.ones(1000)
        world.spawn(world.send(world.peers[1], Tag("x"), dense(x)), "send")
        await world.sleep(1e-4)
        x.add_(1)

    with pytest.raises(Race):
        Simulation(flat(2)).run(program)


def test_writing_to_a_view_of_what_is_lent_is_found() -> None:
    async def program(world: World) -> None:
        if world.me == world.peers[1]:
            await world.recv(Tag("x"), source=world.peers[0])
            return
        x = torch.ones(1000)
        send = world.spawn(world.send(world.peers[1], Tag("x"), dense(x.reshape(10, 100))), "send")
        await world.run(x[:5].zero_, COMPUTE)
        await send

    with pytest.raises(Race):
        Simulation(flat(2, flops=1e12)).run(program)


def test_writing_after_send_has_returned_is_no_race_even_while_the_message_travels() -> None:
    async def program(world: World) -> float:
        if world.me == world.peers[1]:
            return (await world.recv(Tag("x"), source=world.peers[0])).body.tensors[0].sum().item()
        x = torch.ones(10)
        await world.send(world.peers[1], Tag("x"), dense(x))
        await world.run(x.zero_, COMPUTE)
        return 0.0

    assert Simulation(flat(2, latency=5.0)).run(program)["p0001"] == 10.0
