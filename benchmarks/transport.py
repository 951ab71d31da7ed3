"""Which transport for point-to-point messages of CPU tensors?

    python benchmarks/transport.py

Two processes on loopback. `streams` and `torch-distributed` take turns in one run: round trips of 64 bytes, 4 MB one
way, 4 MB both ways at once; then a ring all-reduce of 4 MB by messages against the engine's own. Medians over
repetitions, and the median of the ratios of neighbouring repetitions. About three minutes.
"""

from __future__ import annotations

import multiprocessing
import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from shoal.world import Tag, World, dense
from shoal.worlds.process import run_process
from shoal.worlds.rendezvous import Coordinator, keep_store

NAMES = ("a", "b")
BIG = 1_000_000  # float32: 4 MB
REPEATS = 5


async def round_trip(world: World, rounds: int = 300) -> float:
    """Seconds per round trip of 64 bytes."""
    other, x = NAMES[world.me == "a"], torch.zeros(16)
    began = world.now()
    for t in range(rounds):
        if world.me == "a":
            await world.send(other, Tag("ping", t), dense(x))
            await world.recv(Tag("pong", t), source=other)
        else:
            await world.recv(Tag("ping", t), source=other)
            await world.send(other, Tag("pong", t), dense(x))
    return (world.now() - began) / rounds


async def one_way(world: World, rounds: int = 60) -> float:
    """Seconds per 4 MB from a to b."""
    other, x = NAMES[world.me == "a"], torch.zeros(BIG)
    began = world.now()
    for t in range(rounds):
        if world.me == "a":
            await world.send(other, Tag("big", t), dense(x))
        else:
            await world.recv(Tag("big", t), source=other)
    await _meet(world)
    return (world.now() - began) / rounds


async def both_ways(world: World, rounds: int = 60) -> float:
    """Seconds per 4 MB in each direction at once."""
    other, x = NAMES[world.me == "a"], torch.zeros(BIG)
    began = world.now()
    for t in range(rounds):
        sending = world.spawn(world.send(other, Tag("big", t), dense(x)), "send")
        await world.recv(Tag("big", t), source=other)
        await sending
    return (world.now() - began) / rounds


async def all_reduce(world: World, rounds: int = 60) -> float:
    """Seconds per sum of 4 MB."""
    x = torch.ones(BIG)
    await world.collective("sum", x, world.peers, Tag("warm"))
    began = world.now()
    for t in range(rounds):
        await world.collective("sum", x, world.peers, Tag("sum", t))
    return (world.now() - began) / rounds


async def _meet(world: World) -> None:
    other = NAMES[world.me == "a"]
    sending = world.spawn(world.send(other, Tag("meet"), dense(torch.zeros(1))), "meet")
    await world.recv(Tag("meet"), source=other)
    await sending


def _be(
    me: str, program: Callable[[World], Any], coordinator: Coordinator, settings: dict[str, Any], pipe: Any
) -> None:
    torch.set_num_threads(1)
    took = run_process(program, me=me, peers=NAMES, coordinator=coordinator, **settings)
    if pipe is not None:
        pipe.send(took)


def measure(program: Callable[[World], Any], **settings: Any) -> float:
    """What the program says at peer a, run in two fresh processes."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    with keep_store() as coordinator:
        ends = {"a": theirs, "b": None}
        peers = [
            context.Process(target=_be, args=(me, program, coordinator, settings, end)) for me, end in ends.items()
        ]
        for peer in peers:
            peer.start()
        result = ours.recv()
        for peer in peers:
            peer.join()
    return float(result)


def compare(name: str, unit: float, left: Callable[[], float], right: Callable[[], float]) -> None:
    pairs = [(left(), right()) for _ in range(REPEATS)]
    a, b = (statistics.median(values) * unit for values in zip(*pairs, strict=True))
    ratio = statistics.median(one / other for one, other in pairs)
    print(f"  {name:34} {a:9.3f} {b:9.3f}   {ratio:5.2f}", flush=True)


def main() -> None:
    print(f"{'':36} {'streams':>9} {'engine':>9}   ratio   (ms; medians of {REPEATS})")
    for name, program in (("round trip, 64 B", round_trip), ("4 MB one way", one_way), ("4 MB both ways", both_ways)):
        compare(
            name,
            1e3,
            partial(measure, program, transport="streams"),
            partial(measure, program, transport="torch-distributed"),
        )
    compare(
        "sum of 4 MB: ring of messages, engine",
        1e3,
        partial(measure, all_reduce, collective="ring"),
        partial(measure, all_reduce, collective="engine"),
    )


if __name__ == "__main__":
    main()
