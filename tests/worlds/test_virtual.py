"""What only the virtual world promises: times, lanes, determinism, reported deadlocks, replay."""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import weakref
from typing import Any

import numpy as np
import pytest
import torch

from shoal.errors import Deadlock, Late, UserError
from shoal.trace import Span
from shoal.world import Payload, Tag, Work, World, dense, only_bytes
from shoal.worlds.computations import release_shares
from shoal.worlds.faults import Delay, Jitter
from shoal.worlds.simulation import Simulation, recorded_takes
from worlds.clusters import flat
from worlds.suite import number, place

FIRST = ["p0000"]


def spans(simulation: Simulation, peer: str, lane: str) -> list[tuple[str, float, float]]:
    return [(s.name, s.start, s.stop) for s in simulation.traces[peer].spans if s.lane == lane]


# ---------------------------------------------------------------------------------------------------------- times


def test_a_computation_takes_the_longer_of_arithmetic_and_memory() -> None:
    async def program(world: World) -> list[float]:
        out = []
        for work in (Work("a", flops=2e9, touched_bytes=1.0), Work("b", flops=1.0, touched_bytes=3e9), Work("c")):
            start = world.now()
            await world.run(lambda: None, work)
            out.append(world.now() - start)
        return out

    assert Simulation(flat(1)).run(program) == {"p0000": [2.0, 3.0, 0.0]}


def test_send_returns_when_the_last_byte_has_left_and_it_arrives_after_the_latency() -> None:
    async def program(world: World) -> float:
        if place(world) == 0:
            await world.send(world.peers[1], Tag("x"), Payload((), 500_000))
        else:
            await world.recv(Tag("x"), source=world.peers[0])
        return world.now()

    simulation = Simulation(flat(2, latency=0.25))
    assert simulation.run(program) == {"p0000": 0.5, "p0001": 0.75}
    assert simulation.now == 0.75
    assert spans(simulation, "p0000", "send") == [("x", 0.0, 0.5)]
    assert spans(simulation, "p0001", "wait") == [("x", 0.0, 0.75)]
    assert simulation.traces["p0000"].spans[0].args == {"to": "p0001", "step": 0, "bytes": 500_000}


def test_communication_overlaps_the_computation_that_it_starts_in() -> None:
    """With a transfer of twice the computation, a step takes the transfer from the first mark on, and nothing more."""

    async def program(world: World) -> float:
        other = world.peers[1 - place(world)]
        sends = []
        async for key in world.reach(lambda mark: mark("a"), Work("backward", flops=1e9, marks={"a": 0.5})):
            send = world.send(other, Tag("x", 0, (key,)), only_bytes(2_000_000))
            sends.append(world.spawn(send, "send"))
        await world.recv(Tag("x", 0, ("a",)), source=other)
        for send in sends:
            await send
        return world.now()

    assert list(Simulation(flat(2)).run(program).values()) == [2.5, 2.5]


def test_marks_come_at_their_share_of_the_interval() -> None:
    async def program(world: World) -> list[tuple[Any, float]]:
        await world.sleep(1.0)

        def backward(mark: Any) -> None:
            for key in "abcd":
                mark(key)

        work = Work("backward", flops=4e9, marks={"a": 0.25, "b": 0.5, "d": 1.0})
        out = [(key, world.now()) async for key in world.reach(backward, work)]
        return [*out, ("end", world.now())]

    expected = [("a", 2.0), ("b", 3.0), ("c", 5.0), ("d", 5.0), ("end", 5.0)]
    for fuzz in (False, True):
        assert Simulation(flat(1), fuzz=fuzz).run(program) == {"p0000": expected}


def test_marks_never_overtake_each_other() -> None:
    assert release_shares("abc", {"a": 0.5, "b": 0.2, "c": 0.9}) == [0.5, 0.5, 0.9]
    assert release_shares("abc", {"b": 0.2}) == [0.2, 0.2, 1.0]
    assert release_shares("ab", {}) == [1.0, 1.0]
    assert release_shares("", {"b": 0.2}) == []


def test_lanes_overlap_and_each_keeps_its_order() -> None:
    async def program(world: World) -> None:
        works = [("compute", 2e9), ("compute", 1e9), ("update", 4e9), ("compute", 0.0), ("serve", 1e9)]
        tasks = [
            world.spawn(world.run(lambda: None, Work(f"{n}", flops=flops, lane=lane)), f"{n}")  # type: ignore[arg-type]
            for n, (lane, flops) in enumerate(works)
        ]
        for task in tasks:
            await task

    simulation = Simulation(flat(1), network_seed=5)
    simulation.run(program)
    assert spans(simulation, "p0000", "compute") == [("0", 0.0, 2.0), ("1", 2.0, 3.0), ("3", 3.0, 3.0)]
    assert spans(simulation, "p0000", "update") == [("2", 0.0, 4.0)]
    assert spans(simulation, "p0000", "serve") == [("4", 0.0, 1.0)]
    assert simulation.now == 4.0


@pytest.mark.parametrize("fuzz", [False, True])
def test_a_queued_computation_sees_what_the_one_before_it_wrote(fuzz: bool) -> None:
    async def program(world: World) -> list[float]:
        x = torch.zeros(1)

        def step(n: int) -> float:
            x.mul_(2).add_(n)
            return x.item()

        tasks = [world.spawn(world.run(lambda n=n: step(n), Work("x", flops=1e6 * (n % 2))), "x") for n in range(6)]
        return [await task for task in tasks]

    for seed in range(5):
        assert Simulation(flat(1), fuzz=fuzz, network_seed=seed).run(program)["p0000"] == [0, 1, 4, 11, 26, 57]


def test_slower_devices_and_links_never_make_it_faster() -> None:
    """Case H4: the result moves with the cluster, and in the right direction."""

    async def program(world: World) -> float:
        other = world.peers[1 - place(world)]
        await world.run(lambda: None, Work("x", flops=1e9))
        send = world.spawn(world.send(other, Tag("x"), only_bytes(10**6)), "send")
        await world.recv(Tag("x"), source=other)
        await send
        return world.now()

    base = max(Simulation(flat(2)).run(program).values())
    assert base == 2.0
    assert max(Simulation(flat(2, speed={1: 0.5})).run(program).values()) == 3.0
    slow_link = flat(2, link=lambda a, b: (0.0, 0.5e6 if (a, b) == (0, 1) else 1e6))
    assert max(Simulation(slow_link).run(program).values()) == 3.0


def test_a_large_clock_loses_nothing() -> None:
    async def program(world: World) -> list[float]:
        await world.sleep(1e9)
        other = world.peers[1 - place(world)]
        for step in range(20):
            send = world.spawn(world.send(other, Tag("x", step), only_bytes(1)), "send")
            await world.recv(Tag("x", step), source=other)
            await world.run(lambda: None, Work("x", flops=1.0))
            await send
        return [world.now()]

    simulation = Simulation(flat(2, latency=1e-9, bandwidth=1e15))
    simulation.run(program)
    assert simulation.now >= 1e9


# --------------------------------------------------------------------------------------------------------- jitter


def durations(jitter: Jitter, count: int = 4000) -> dict[str, np.ndarray]:
    async def program(world: World) -> None:
        for _ in range(count):
            await world.run(lambda: None, Work("x", flops=1e9))

    simulation = Simulation(flat(2), numeric=False, jitter=jitter)
    simulation.run(program)
    return {peer: np.array([s.stop - s.start for s in trace.spans]) for peer, trace in simulation.traces.items()}


@pytest.mark.parametrize("kind", ["normal", "log-normal", "exponential"])
def test_jitter_has_mean_one_and_the_spread_asked_for(kind: Any) -> None:
    for seconds in durations(Jitter(kind=kind, spread=0.3, seed=3)).values():
        assert seconds.mean() == pytest.approx(1.0, abs=0.02)
        assert seconds.std() == pytest.approx(0.3, abs=0.03)
        assert seconds.min() > 0


def test_jitter_is_seeded_and_different_per_peer() -> None:
    first = durations(Jitter(kind="normal", seed=1), 10)
    again = durations(Jitter(kind="normal", seed=1), 10)
    other = durations(Jitter(kind="normal", seed=2), 10)
    assert all(np.array_equal(first[peer], again[peer]) for peer in first)
    assert not np.array_equal(first["p0000"], first["p0001"])
    assert not np.array_equal(first["p0000"], other["p0000"])


def test_a_straggler_is_slower_by_its_factor() -> None:
    seconds = durations(Jitter(straggler="p0001", slowdown=4.0), 3)
    assert seconds["p0000"].tolist() == [1.0, 1.0, 1.0]
    assert seconds["p0001"].tolist() == [4.0, 4.0, 4.0]


# ---------------------------------------------------------------------------------------------------- determinism


async def mixing(world: World) -> torch.Tensor:
    """Five steps of ring gossip and a sum, each computation drawing from the default generator."""
    n, me = len(world.peers), place(world)
    x = torch.randn(50, generator=world.rng("init"))
    left, right = world.peers[me - 1], world.peers[(me + 1) % n]
    for t in range(5):
        sends = [world.spawn(world.send(peer, Tag("mix", t), dense(x)), "mix") for peer in (left, right)]
        got = [(await world.recv(Tag("mix", t), source=peer)).one(x) for peer in (left, right)]
        for send in sends:
            await send

        def step(got: list[torch.Tensor] = got) -> None:
            x.add_(got[0]).add_(got[1]).div_(3).add_(torch.randn(50), alpha=0.1)

        await world.run(step, Work("update", flops=1e7, lane="update", seed=("noise", me, t)))
        await world.collective("sum", x, world.peers, Tag("sum", t))
        await world.run(lambda: x.div_(n), Work("scale", flops=1e6))
    return x


def test_the_same_seeds_give_the_same_run_to_the_last_span() -> None:
    runs = []
    for _ in range(2):
        simulation = Simulation(flat(5, latency=1e-3), fuzz=True, jitter=Jitter(kind="log-normal"), faults=[Delay(0.1)])
        results = simulation.run(mixing)
        traces = {peer: (trace.spans, trace.events) for peer, trace in simulation.traces.items()}
        runs.append((results, traces, simulation.now, simulation.moments))
    first, again = runs
    assert all(torch.equal(first[0][peer], again[0][peer]) for peer in first[0])
    assert first[1:] == again[1:]


def test_neither_network_nor_jitter_nor_points_of_execution_change_the_bits() -> None:
    plain = Simulation(flat(5, latency=1e-3)).run(mixing)
    for seed in range(8):
        simulation = Simulation(
            flat(5, latency=1e-2 * seed, bandwidth=1e4, speed={seed % 5: 0.1}),
            network_seed=seed,
            fuzz=seed % 2 == 0,
            jitter=Jitter(kind="exponential", spread=0.9, seed=seed),
            faults=[Delay(1.0, seed)],
            expand_collectives=seed % 3 == 0,
        )
        got = simulation.run(mixing)
        assert all(torch.equal(got[peer], plain[peer]) for peer in plain)


def test_another_job_seed_gives_other_numbers() -> None:
    assert not torch.equal(
        Simulation(flat(2), seed=1).run(mixing)["p0000"], Simulation(flat(2), seed=2).run(mixing)["p0000"]
    )


def test_nothing_outside_is_changed() -> None:
    torch.set_num_threads(2)
    state = torch.get_rng_state()

    async def program(world: World) -> int:
        return torch.get_num_threads()

    assert Simulation(flat(1), threads=1).run(program) == {"p0000": 1}
    Simulation(flat(3)).run(mixing)
    assert torch.get_num_threads() == 2
    assert torch.equal(torch.get_rng_state(), state)


# ---------------------------------------------------------------------------------------------------- timing mode


def test_timing_mode_executes_nothing_and_takes_the_same_time() -> None:
    async def program(world: World) -> tuple[list[Any], Any, float]:
        def never(mark: Any = None) -> Any:
            if not world.numeric:
                raise AssertionError("executed")
            for key in ("b", "a"):
                if mark:
                    mark(key)

        work = Work("backward", flops=1e9, marks={"a": 0.75, "b": 0.25}, seed=("x",))
        keys = [(key, world.now()) async for key in world.reach(never, work)]
        other = world.peers[1 - place(world)]
        send = world.spawn(world.send(other, Tag("x"), Payload((torch.ones(3),), 10**6)), "send")
        message = await world.recv(Tag("x"), source=other)
        await send
        assert len(message.body.tensors) == world.numeric
        result = await world.run(never, Work("x", flops=1e9), timing="made up")
        return keys, result, world.now()

    timing = Simulation(flat(2), numeric=False).run(program)["p0000"]
    numeric = Simulation(flat(2)).run(program)["p0000"]
    assert timing == ([("b", 0.25), ("a", 0.75)], "made up", 3.0)
    assert numeric == ([("b", 0.25), ("a", 0.75)], None, 3.0)


def test_the_device_has_no_values_in_timing_mode() -> None:
    async def program(world: World) -> str:
        return world.device.type

    assert Simulation(flat(1), numeric=False).run(program) == {"p0000": "meta"}
    assert Simulation(flat(1)).run(program) == {"p0000": "cpu"}


# ------------------------------------------------------------------------------------------------------ deadlocks


def test_a_deadlock_is_reported_at_once_with_who_waits_for_what() -> None:
    async def program(world: World) -> None:
        await world.sleep(3.0)
        if place(world) == 0:
            await world.recv(Tag("grad", 4, ("b", 1)), source=world.peers[1])
        elif place(world) == 1:
            await world.recv_any("ask")
        elif place(world) == 2:
            await world.collective("sum", torch.ones(2), world.peers, Tag("sum", 9))
        else:
            await asyncio.get_running_loop().create_future()

    simulation = Simulation(flat(4))
    with pytest.raises(Deadlock) as caught:
        simulation.run(program)
    text = str(caught.value)
    assert "at 3 s" in text
    assert "'p0000' waits for 'grad' ('b', 1) of step 4 from 'p0001'" in text
    assert "'p0001' waits for any 'ask'" in text
    assert "'p0002' waits for the collective 'sum' of step 9" in text
    assert "'p0000', 'p0001', 'p0003'" in text
    assert "'p0003' waits for" in text
    assert "main" in text
    assert simulation.now == 3.0


def test_a_deadline_of_its_own_saves_from_deadlock() -> None:
    async def program(world: World) -> float:
        with pytest.raises(Late):
            await world.recv(Tag("x"), source=world.peers[1 - place(world)], within=5.0)
        return world.now()

    assert Simulation(flat(2)).run(program) == {"p0000": 5.0, "p0001": 5.0}


@pytest.mark.parametrize("expand", [False, True])
def test_waiting_for_a_busy_peer_ends_at_the_deadline(expand: bool) -> None:
    async def program(world: World) -> tuple[str, int, float]:
        if place(world) == 1:
            await world.sleep(100.0)
            return "", 0, 0.0
        with pytest.raises(Late) as caught:
            await world.collective("sum", torch.ones(2), world.peers, Tag("sum", 6))
        return caught.value.peer, caught.value.step, world.now()

    simulation = Simulation(flat(2), wait_deadline=30.0, expand_collectives=expand)
    peer, step, at = simulation.run(program)["p0000"]
    assert (peer, step) == ("p0001", 6)
    assert at == pytest.approx(30.0, abs=1e-3)


def test_disagreeing_about_the_group_is_a_deadlock_that_shows_it() -> None:
    async def program(world: World) -> None:
        group = world.peers[:2] if place(world) == 0 else world.peers
        await world.collective("sum", torch.ones(2), group, Tag("sum"))

    with pytest.raises(Deadlock, match=r"which \['p0001'\] did not join"):
        Simulation(flat(3)).run(program)


# --------------------------------------------------------------------------------------------------------- replay


async def first_come_first_served(world: World) -> float:
    """Peer 0 folds what arrives into a number that depends on the order of arrival."""
    if place(world) > 0:
        for step in range(4):
            await world.sleep(float(torch.rand(1, generator=world.rng("pause", place(world), step))))
            await world.send(world.peers[0], Tag("ask", step, ("x", place(world))), number(place(world)))
        await world.recv(Tag("bye"), source=world.peers[0])
        return 0.0
    total = 1.0
    for n in range(4 * (len(world.peers) - 1)):
        match = (lambda m: m.tag.step % 2 == 0) if n == 0 else None
        message = await world.recv_any("ask", match=match)
        total = math.sin(total * 10 + message.body.tensors[0].item()) + message.tag.step
    for peer in world.peers[1:]:
        await world.send(peer, Tag("bye"), number(0))
    return total


def test_a_run_is_replayed_from_its_order_of_arrival() -> None:
    recorded = Simulation(flat(5), network_seed=1, faults=[Delay(2.0, 1)])
    result = recorded.run(first_come_first_served)["p0000"]
    events = [event for trace in recorded.traces.values() for event in trace.events]
    takes = recorded_takes(events)
    assert list(takes) == FIRST
    assert len(takes["p0000"]) == 16
    others = set()
    for seed in range(2, 7):
        hostile = {"network_seed": seed, "faults": [Delay(2.0, seed)]}
        others.add(Simulation(flat(5), **hostile).run(first_come_first_served)["p0000"])
        replayed = Simulation(flat(5), **hostile, arrivals=takes).run(first_come_first_served)["p0000"]
        assert replayed == result
    assert others - {result}, "other delays must give other orders, or this test shows nothing"


def test_takes_survive_a_file() -> None:
    recorded = Simulation(flat(3), faults=[Delay(2.0, 1)])
    recorded.run(first_come_first_served)
    events = [event for trace in recorded.traces.values() for event in trace.events]
    takes = recorded_takes(events)
    for event in events:
        object.__setattr__(event, "fields", json.loads(json.dumps(event.fields)))
    assert recorded_takes(events) == takes
    assert takes["p0000"][0][0] == "ask"
    assert takes["p0000"][0][3][0] == "x"


# ---------------------------------------------------------------------------------------------------- other things


def test_only_the_named_peers_take_part() -> None:
    async def program(world: World) -> tuple[str, ...]:
        return world.peers

    assert Simulation(flat(4)).run(program, peers=["p0003", "p0001"]) == dict.fromkeys(
        ["p0001", "p0003"], ("p0001", "p0003")
    )
    with pytest.raises(UserError, match="p0009"):
        Simulation(flat(4)).run(program, peers=["p0009"])


def test_links_are_what_the_cluster_says() -> None:
    async def program(world: World) -> tuple[float, float]:
        link = world.link(world.peers[1 - place(world)])
        return link.latency_s, link.bandwidth_bytes_per_s

    assert Simulation(flat(2, latency=0.1, bandwidth=5e6, up=2e6)).run(program)["p0000"] == (0.1, 2e6)


def test_traces_are_bounded() -> None:
    async def program(world: World) -> None:
        for _ in range(50):
            await world.run(lambda: None, Work("x"))

    simulation = Simulation(flat(1), span_limit=20)
    simulation.run(program)
    assert len(simulation.traces["p0000"].spans) == 20
    assert simulation.traces["p0000"].dropped == 30


@pytest.mark.parametrize("expand", [False, True])
def test_nothing_of_a_finished_step_stays_in_memory(expand: bool) -> None:
    """Case C16: after hundreds of exchanges, some of them given up, only the last ones' tensors are alive."""

    async def program(world: World) -> int:
        other, seen = world.peers[1 - place(world)], []
        for t in range(300):
            send = world.spawn(world.send(other, Tag("x", t), dense(torch.ones(2))), "x")
            seen.append(weakref.ref((await world.recv(Tag("x", t), source=other)).body.tensors[0]))
            await send
            with pytest.raises(Late):
                await world.recv(Tag("never", t), source=other, within=1e-4)
            x = await world.run(lambda: torch.ones(3), Work("x", flops=1e3))
            seen.append(weakref.ref(x))
            await world.collective("sum", x, world.peers, Tag("sum", t))
        return sum(tensor() is not None for tensor in seen)

    for alive in Simulation(flat(2, latency=1e-4), expand_collectives=expand).run(program).values():
        assert alive <= 4


def test_a_failure_names_its_worker_and_stops_the_run() -> None:
    async def program(world: World) -> None:
        if place(world) == 2:
            await world.sleep(1.0)
            raise KeyError("broken")
        await world.recv(Tag("x"), source=world.peers[2])

    simulation = Simulation(flat(4))
    with pytest.raises(KeyError) as caught:
        simulation.run(program)
    assert caught.value.__notes__ == ["in worker 'p0002' at 1.000000 s"]
    assert simulation.now == 1.0


def test_a_program_that_cancels_itself_is_a_failure() -> None:
    async def program(world: World) -> None:
        raise asyncio.CancelledError

    with pytest.raises(Exception, match="cancelled itself"):
        Simulation(flat(1)).run(program)


def test_a_simulation_can_be_run_again() -> None:
    simulation = Simulation(flat(3))
    first, again = simulation.run(mixing), simulation.run(mixing)
    assert all(torch.equal(first[peer], again[peer]) for peer in first)


def test_spans_of_a_lane_do_not_overlap() -> None:
    simulation = Simulation(flat(4, latency=1e-3), fuzz=True, jitter=Jitter(kind="normal"))
    simulation.run(mixing)
    for trace in simulation.traces.values():
        for lane in ("compute", "update", "serve"):
            ordered: list[Span] = sorted((s for s in trace.spans if s.lane == lane), key=lambda s: s.start)
            assert all(a.stop <= b.start for a, b in itertools.pairwise(ordered))
