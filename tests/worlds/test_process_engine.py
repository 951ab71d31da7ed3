"""The engine's own collectives: right sums in whatever order tasks come to them, never a hang or an abort."""

from __future__ import annotations

import signal
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from shoal.errors import BadMessage
from shoal.world import Tag, World
from shoal.worlds.seeds import derive, generator
from worlds.processes import Crowd
from worlds.test_process_failures import arrive, lost, nothing_is_left

NAMES = ["a", "b", "c"]
GROUPS = [("a", "b"), ("b", "c"), ("a", "c"), ("a", "b", "c")]


def part(peer: str, n: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randint(-50, 50, (10 + 7 * n,), generator=generator(3, peer, n)).to(dtype)


async def many_sums(world: World, *, salt: int) -> dict[tuple[int, int], Tensor]:
    """Sums of all groups at the same time, begun in an order that is another one on every peer."""
    calls = [(g, n) for g, group in enumerate(GROUPS) if world.me in group for n in range(6)]
    order = torch.randperm(len(calls), generator=world.rng("order", world.me, salt)).tolist()
    xs: dict[tuple[int, int], Tensor] = {}
    tasks = []
    for g, n in (calls[place] for place in order):
        x = xs[g, n] = part(world.me, n)
        tasks.append(world.spawn(world.collective("sum", x, GROUPS[g], Tag("sum", n // 2, (g, n))), "sum"))
        if derive(salt, world.me, g, n) % 3 == 0:
            await world.sleep(0.002)  # some are told to go before the next is begun
    for task in tasks:
        await task
    return xs


@pytest.mark.parametrize("salt", [1, 2, 3])
def test_sums_are_right_in_whatever_order_tasks_come_to_them(crowd: Crowd, salt: int) -> None:
    endings = crowd.run(partial(many_sums, salt=salt), NAMES, collective="engine", seed=salt)
    for peer, ending in endings.items():
        assert ending.error is None, ending.trace
        for (g, n), got in ending.value.items():
            assert peer in GROUPS[g]
            assert torch.equal(got, torch.stack([part(other, n) for other in GROUPS[g]]).sum(0))
    nothing_is_left(endings)


async def one_sum(world: World, *, dtype: torch.dtype, n: int = 3) -> tuple[Tensor, int]:
    x = part(world.me, n, dtype)
    await world.collective("sum", x, world.peers, Tag("sum"))
    return x, world.sent_bytes


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64])
def test_every_dtype_is_summed(crowd: Crowd, dtype: torch.dtype) -> None:
    """The values are whole numbers, so that no order of additions can change a bit."""
    expected = sum(part(peer, 3, torch.float32) for peer in NAMES)
    assert isinstance(expected, Tensor)
    for ending in crowd.run(partial(one_sum, dtype=dtype), NAMES, collective="engine").values():
        assert ending.error is None, ending.trace
        got, sent = ending.value
        assert torch.equal(got, expected.to(dtype))
        assert sent == 2 * got.numel() * got.element_size() * 2 // 3


async def odd_shapes(world: World) -> list[Tensor]:
    """Nothing at all, every second element of a vector, and a group of one."""
    nothing, strided, alone = torch.zeros(0), torch.zeros(10), torch.ones(2)
    await world.collective("sum", nothing, world.peers, Tag("nothing"))
    await world.collective("sum", strided[::2].fill_(1.0), world.peers, Tag("strided"))
    await world.collective("sum", alone, [world.me], Tag("alone"))
    return [nothing, strided, alone]


def test_odd_shapes_are_summed(crowd: Crowd) -> None:
    for ending in crowd.run(odd_shapes, NAMES, collective="engine").values():
        nothing, strided, alone = ending.value
        assert nothing.numel() == 0
        assert torch.equal(strided, torch.tensor([3.0, 0.0] * 5))
        assert torch.equal(alone, torch.ones(2))


async def unequal(world: World, *, odd: Any) -> tuple[str, str]:
    """Peer c brings something else; then all bring the same."""
    try:
        x = odd if world.me == "c" else torch.ones(1000)
        await world.collective("sum", x, world.peers, Tag("sum", 5, ("block",)))
    except BadMessage as bad:
        ones = torch.ones(3)
        await world.collective("sum", ones, world.peers, Tag("sum", 6))
        assert torch.equal(ones, torch.full((3,), 3.0))
        return bad.peer, bad.why
    return "nobody", ""


@pytest.mark.parametrize("odd", [torch.ones(1010), torch.ones(1000, dtype=torch.float64)])
def test_another_size_or_dtype_never_reaches_the_engine(crowd: Crowd, odd: Tensor) -> None:
    """Case D9: Gloo would abort the process. Everybody learns who differs and how, and lives."""
    endings = crowd.run(partial(unequal, odd=odd), NAMES, collective="engine")
    assert {peer: ending.value[0] for peer, ending in endings.items()} == {"a": "c", "b": "c", "c": "a"}
    for ending in endings.values():
        assert "'a' has 1000 elements of float32" in ending.value[1]
        assert f"'c' has {odd.numel()} elements of {str(odd.dtype)[6:]}" in ending.value[1]


async def sum_without_c(world: World) -> None:
    """Peer c takes part in one sum and then in none; the others wait for it in the engine's order."""
    world.event("step", step=4)
    await world.collective("sum", torch.ones(10), world.peers, Tag("sum", 4))
    await arrive(world)
    world.event("running")
    if world.me == "c":
        await world.sleep(60.0)
    await world.collective("sum", torch.ones(10), world.peers, Tag("sum", 5))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_lost_peer_ends_a_sum(crowd: Crowd, number: int) -> None:
    with crowd.begin(sum_without_c, NAMES, collective="engine", peer_deadline=2.0) as launch:
        launch.until_running()
        launch.signal("c", number)
        endings = launch.wait(["a", "b"])
        launch.discard("c")
    for ending in endings.values():
        assert lost(ending).peer == "c"
        assert lost(ending).step == 4
    nothing_is_left(endings)


async def endless_sums(world: World) -> None:
    x = torch.ones(3_000_000)
    await arrive(world)
    world.event("running")
    for t in range(1_000_000):
        world.event("step", step=t)
        await world.collective("sum", x, world.peers, Tag("sum", t))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_peer_lost_inside_the_engine_ends_it(crowd: Crowd, number: int) -> None:
    """Gloo may not notice that a sum is broken off. Then its thread stays; neither run nor process waits for it."""
    with crowd.begin(endless_sums, NAMES, collective="engine", peer_deadline=2.0) as launch:
        launch.until_running()
        launch.signal("c", number)
        endings = launch.wait(["a", "b"])
        launch.discard("c")
        for peer, ending in endings.items():
            assert lost(ending).peer == "c", ending.trace
            assert ending.before is not None and ending.after is not None
            if "collectives" in ending.after.threads:
                assert launch.dismiss(peer) == 0
            else:
                assert ending.after == ending.before
