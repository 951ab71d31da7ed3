"""The ring all-reduce: the sum, its bits, its bytes and its time, as messages and in one go."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from shoal.cluster import Cluster
from shoal.world import Tag, Work, World, dense, only_bytes
from shoal.worlds.faults import Delay, Jitter
from shoal.worlds.ring import chunk_bounds, chunk_nbytes, ring_sum
from shoal.worlds.ring_time import Ring, ring_bytes, ring_times
from shoal.worlds.simulation import Simulation
from worlds.clusters import flat


def parts(n: int, numel: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    gen = torch.Generator().manual_seed(1000 * n + numel)
    return [(torch.randn(numel, generator=gen, dtype=torch.float64) * 10).to(dtype) for _ in range(n)]


def one_by_one(tensors: Sequence[Tensor]) -> Tensor:
    """The definition, element by element: the sum starts at the peer whose chunk it is in and goes round the ring."""
    n, numel = len(tensors), tensors[0].numel()
    size = math.ceil(numel / n)
    out = tensors[0].clone()
    for e in range(numel):
        first = e // size
        total = tensors[first][e].clone()
        for j in range(1, n):
            total = total + tensors[(first + j) % n][e]
        out[e] = total
    return out


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("n", [1, 2, 3, 5, 8])
def test_ring_sum_adds_in_ring_order(n: int, dtype: torch.dtype) -> None:
    for numel in (0, 1, 2, n - 1, n, n + 1, 37):
        tensors = parts(n, numel, dtype)
        kept = [tensor.clone() for tensor in tensors]
        assert torch.equal(ring_sum(tensors), one_by_one(tensors))
        assert all(map(torch.equal, tensors, kept))


def test_ring_sum_keeps_the_shape_and_ignores_strides() -> None:
    tensors = [part.reshape(3, 4).t() for part in parts(3, 12)]
    assert torch.equal(ring_sum(tensors), ring_sum([tensor.contiguous() for tensor in tensors]))
    assert ring_sum(tensors).shape == (4, 3)


@given(st.integers(0, 200), st.integers(1, 12), st.integers(0, 10_000))
def test_chunks_cover_the_vector_and_its_bytes(numel: int, n: int, nbytes: int) -> None:
    bounds = chunk_bounds(numel, n)
    assert [e for lo, hi in bounds for e in range(lo, hi)] == list(range(numel))
    costs = chunk_nbytes(numel, n, nbytes)
    assert sum(costs) == nbytes
    assert min(costs) >= 0
    assert chunk_nbytes(numel, n, 4 * numel) == [4 * (hi - lo) for lo, hi in bounds] or numel == 0


async def summing(
    world: World, tensors: Sequence[Tensor], late: Sequence[float] = ()
) -> tuple[Tensor, float, int, int]:
    """Joins `late` seconds after the start; returns the sum, when it was there, and the bytes that it took."""
    r = world.peers.index(world.me)
    if late:
        await world.sleep(late[r])
    x = tensors[r].clone()
    await world.collective("sum", x, world.peers, Tag("sum", 3))
    return x, world.now(), world.sent_bytes, world.received_bytes


def both(cluster: Cluster, tensors: Sequence[Tensor], late: Sequence[float] = ()) -> tuple[list[Any], list[Any]]:
    """The same sum in one go and as messages."""
    out = []
    for expand in (False, True):
        got = Simulation(cluster, expand_collectives=expand).run(lambda world: summing(world, tensors, late))
        out.append([got[peer] for peer in sorted(got)])
    return out[0], out[1]


def assert_same(one_go: list[Any], messages: list[Any], tensors: Sequence[Tensor]) -> None:
    expected = ring_sum(tensors)
    for (x, at, sent, received), (y, when, sent_too, received_too) in zip(one_go, messages, strict=True):
        assert torch.equal(x, expected)
        assert torch.equal(y, expected)
        assert at == pytest.approx(when, rel=1e-9)
        assert (sent, received) == (sent_too, received_too)


@pytest.mark.parametrize("latency", [0.0, 1e-5, 0.3])
@pytest.mark.parametrize("n", [2, 3, 4, 7])
def test_in_one_go_takes_what_the_messages_take_on_equal_links(n: int, latency: float) -> None:
    for numel in (1, n, 5 * n + 3, 1000):
        tensors = parts(n, numel)
        assert_same(*both(flat(n, latency=latency), tensors), tensors)


@settings(max_examples=40)
@given(st.integers(2, 7), st.integers(1, 60), st.integers(0, 10**6))
def test_in_one_go_takes_what_the_messages_take_on_unequal_links_and_joins(n: int, numel: int, seed: int) -> None:
    draw = np.random.default_rng(seed)
    latency, bandwidth = draw.choice([0.0, 1e-4, 1e-2], (n, n)), draw.choice([1e3, 3e3, 1e5, 1e6, math.inf], (n, n))
    late = draw.choice([0.0, 0.01, 0.1], n).tolist()
    cluster = flat(
        n,
        link=lambda a, b: (float(latency[a, b]), float(bandwidth[a, b])),
        memory_bandwidth=float(draw.choice([1e5, 1e9])),
    )
    tensors = parts(n, numel)
    assert_same(*both(cluster, tensors, late), tensors)


def test_each_peer_sends_twice_the_vector_less_two_chunks() -> None:
    one_go, messages = both(flat(4), parts(4, 100))
    for _, _, sent, received in (*one_go, *messages):
        assert sent == received == 2 * 3 * 100
    assert ring_bytes(np.array([4.0, 4.0, 2.0, 0.0])).tolist() == [14.0, 18.0, 16.0, 12.0]


def test_the_time_on_equal_links_is_the_textbook_formula() -> None:
    """2(n-1) (chunk/bandwidth + latency), plus adding n-1 chunks and writing the result."""
    n, chunk, latency, bandwidth, memory = 5, 1000.0, 0.01, 1e6, 1e9
    ring = Ring(rate=np.full(n, bandwidth), latency=np.full(n, latency), touch=np.full(n, 1 / memory))
    times, _ = ring_times(ring, np.full(n, chunk), np.zeros(n))
    expected = 2 * (n - 1) * (chunk / bandwidth + latency) + (3 * (n - 1) + 2 * n) * chunk / memory
    assert times == pytest.approx(np.full(n, expected), rel=1e-12)


def test_timing_mode_takes_the_same_time_without_values() -> None:
    cluster, tensors = flat(3, latency=0.01), parts(3, 100)
    numeric, _ = both(cluster, tensors)

    async def program(world: World) -> float:
        assert not world.numeric
        await world.collective("sum", torch.empty(100, device="meta"), world.peers, Tag("sum"))
        return world.now()

    async def only_counts(world: World) -> float:
        await world.collective("sum", torch.empty(0), world.peers, Tag("sum"), nbytes=400)
        return world.now()

    for expand in (False, True):
        simulation = Simulation(cluster, numeric=False, expand_collectives=expand)
        assert list(simulation.run(program).values()) == pytest.approx([at for _, at, _, _ in numeric], rel=1e-9)
        assert list(simulation.run(only_counts).values()) == pytest.approx([at for _, at, _, _ in numeric], rel=1e-2)


async def with_traffic(world: World) -> float:
    """A sum while peer 0 sends something large to its neighbour on the ring."""
    sends = []
    if world.me == world.peers[0]:
        sends.append(world.spawn(world.send(world.peers[1], Tag("other"), only_bytes(10**7)), "other"))
    await world.collective("sum", torch.empty(10**6, device="meta"), world.peers, Tag("sum"), nbytes=4 * 10**6)
    at = world.now()
    for send in sends:
        await send
    return at


@pytest.mark.parametrize("n", [2, 3, 8])
@pytest.mark.parametrize("latency", [0.0, 0.05, 0.5])
def test_other_traffic_slows_a_sum_about_as_much_as_its_messages(n: int, latency: float) -> None:
    """The traffic of a sum in one go is met approximately: within a quarter of what the messages take."""
    times = {}
    for expand in (False, True):
        cluster = flat(n, latency=latency, memory_bandwidth=math.inf)
        got = Simulation(cluster, numeric=False, expand_collectives=expand).run(with_traffic)
        times[expand] = max(got.values())
    alone = 2 * (n - 1) * (4.0 / n + latency)
    assert times[True] >= alone
    assert times[False] == pytest.approx(times[True], rel=0.25)


@pytest.mark.parametrize("n", [2, 4])
@pytest.mark.parametrize("latency", [0.0, 0.2])
def test_sums_at_the_same_time_share_the_links(n: int, latency: float) -> None:
    async def program(world: World) -> float:
        tasks = []
        for part in range(3):
            x = torch.empty(10**6, device="meta")
            tasks.append(world.spawn(world.collective("sum", x, world.peers, Tag("sum", 0, (part,))), "sum"))
        for task in tasks:
            await task
        return world.now()

    times = {}
    for expand in (False, True):
        cluster = flat(n, latency=latency, memory_bandwidth=math.inf)
        got = Simulation(cluster, numeric=False, expand_collectives=expand).run(program)
        times[expand] = max(got.values())
    assert times[False] == pytest.approx(times[True], rel=0.02)


def test_a_sum_slows_other_traffic() -> None:
    async def program(world: World) -> float:
        task = world.spawn(world.collective("sum", torch.empty(10**6, device="meta"), world.peers, Tag("sum")), "sum")
        if world.me == world.peers[0]:
            await world.send(world.peers[1], Tag("x"), only_bytes(10**6))
        at = world.now()
        await task
        return at

    got = Simulation(flat(2), numeric=False).run(program)
    assert max(got.values()) == pytest.approx(2.0)


@pytest.mark.parametrize("seed", range(5))
def test_neither_delays_nor_jitter_change_the_bits(seed: int) -> None:
    n, tensors = 5, parts(5, 23)

    async def program(world: World) -> list[Tensor]:
        xs = [tensors[world.peers.index(world.me)].clone() for _ in range(4)]
        tasks = [
            world.spawn(world.collective("sum", x, world.peers, Tag("sum", 0, (b,))), "sum") for b, x in enumerate(xs)
        ]
        for x in (*xs, *xs):
            await world.run(lambda x=x: x.shape, Work("look", flops=1e6))
        for task in tasks:
            await task
        return xs

    simulation = Simulation(
        flat(n, latency=1e-3),
        network_seed=seed,
        fuzz=True,
        expand_collectives=True,
        faults=[Delay(0.5, seed)],
        jitter=Jitter(kind="exponential", spread=0.9, seed=seed),
    )
    expected = ring_sum(tensors)
    for xs in simulation.run(program).values():
        assert all(torch.equal(x, expected) for x in xs)


@pytest.mark.slow
def test_thousands_of_hostile_schedules_leave_the_bits_alone() -> None:
    tensors = parts(4, 11)
    expected = ring_sum(tensors)
    for seed in range(1500):
        simulation = Simulation(
            flat(4), network_seed=seed, fuzz=True, expand_collectives=True, faults=[Delay(1.0, seed)]
        )
        got = simulation.run(lambda world: summing(world, tensors))
        assert all(torch.equal(x, expected) for x, *_ in got.values())


def test_hundreds_of_hostile_schedules_leave_the_bits_alone() -> None:
    tensors = parts(3, 7)
    expected = ring_sum(tensors)
    for seed in range(200):
        simulation = Simulation(
            flat(3), network_seed=seed, fuzz=True, expand_collectives=True, faults=[Delay(1.0, seed)]
        )
        got = simulation.run(lambda world: summing(world, tensors))
        assert all(torch.equal(x, expected) for x, *_ in got.values())


@pytest.mark.parametrize("expand", [False, True])
def test_a_ring_needs_distinct_peers_with_me_among_them(expand: bool) -> None:
    async def program(world: World) -> None:
        other = world.peers[world.me == world.peers[0]]
        for peers in ([world.me, world.me], [other], [world.me, other, world.me]):
            with pytest.raises(ValueError, match="distinct peers"):
                await world.collective("sum", torch.ones(1), peers, Tag("sum"))

    Simulation(flat(2), expand_collectives=expand).run(program)


def test_writing_during_a_sum_is_a_race() -> None:
    from shoal.errors import Race

    async def program(world: World) -> None:
        x = torch.ones(1000)
        task = world.spawn(world.collective("sum", x, world.peers, Tag("sum", 8)), "sum")
        await world.sleep(1e-4)
        await world.run(lambda: x.add_(1), Work("write"))
        await task

    with pytest.raises(Race, match="'sum' of step 8"):
        Simulation(flat(2, latency=0.1)).run(program)


def test_a_message_that_is_no_tensor_of_mine_is_refused() -> None:
    """A peer that sends a chunk of another dtype is named."""
    from shoal.errors import BadMessage

    async def program(world: World) -> str:
        if world.me == world.peers[1]:
            await world.send(world.peers[0], Tag("sum", 2, ("ring", 0)), dense(torch.ones(2, dtype=torch.float64)))
            return ""
        with pytest.raises(BadMessage) as caught:
            await world.collective("sum", torch.ones(4), world.peers, Tag("sum", 2))
        return caught.value.peer

    got = Simulation(flat(2), expand_collectives=True).run(program, return_exceptions=True)
    assert got["p0000"] == "p0001"
