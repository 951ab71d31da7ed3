"""In timing mode mixings move the same bytes in the same time as with real tensors, without any tensor."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Any

import pytest

from mixing.harness import CLUSTER, FLOPS, Model, Problem, Setting, owners_of, topology_of, train
from shoal.mixing import Context, Mixing
from shoal.mixing.all_reduce import AllReduce
from shoal.mixing.gossip import Gossip
from shoal.mixing.none import Alone
from shoal.registry import NoOptions, entries, load
from shoal.state import Block, Gate
from shoal.world import Work, World
from shoal.worlds.simulation import Simulation
from state.building import specs_of
from worlds.clusters import flat

N = 4


def time_only(setting: Setting, n: int = N, steps: int = 6) -> Simulation:
    specs = specs_of(Model(Problem(1).start(0)), bucket_bytes=setting.bucket_bytes)
    owners, topology = owners_of(n, setting.island_size), topology_of(setting)

    async def work(world: World) -> None:
        blocks: dict[Hashable, Block] = {(spec.name,): Block.shape_only(spec, owners) for spec in specs}
        gate = Gate(world, list(blocks.values()), clip=setting.clip)
        mixing = setting.mixing(
            Context(world=world, blocks=list(blocks.values()), gate=gate, topology=topology, options=NoOptions())
        )
        marks: dict[Hashable, float] = {key: block.spec.ready for key, block in blocks.items()}
        for t in range(steps):
            await mixing.begin(t)
            reached = world.reach(lambda mark: None, Work("backward", flops=FLOPS, marks=marks))
            updates = [world.spawn(mixing.update(blocks[key], t), "update") async for key in reached]
            for update in updates:
                await update
            await mixing.end(t)
        await mixing.settle()

    simulation = Simulation(flat(n, **setting.cluster), numeric=False)
    simulation.run(work)
    return simulation


def spans(simulation: Simulation) -> list[tuple[Any, ...]]:
    return sorted(
        (span.peer, span.lane, span.name, round(span.start, 9), round(span.stop, 9), span.args.get("bytes"))
        for trace in simulation.traces.values()
        for span in trace.spans
    )


@pytest.mark.parametrize(
    ("mixing", "topology"),
    [
        (Alone, None),
        (AllReduce, None),
        (Gossip, "ring"),
        (Gossip, "complete"),
        (Gossip, "one-peer-exponential"),
        (Gossip, "alternating-exponential-ring"),
    ],
)
@pytest.mark.parametrize("clip", [None, 1.0])
def test_timing_mode_has_the_same_spans_as_numeric_mode(
    mixing: Callable[[Context], Mixing], topology: str | None, clip: float | None
) -> None:
    setting = Setting(mixing=mixing, topology=topology, island_size=2, clip=clip, cluster=CLUSTER)
    real = train(Problem(N, equal_start=True), setting).simulation
    assert spans(time_only(setting)) == spans(real)


def test_bucket_size_changes_messages_not_bytes() -> None:
    setting = Setting(topology="ring")

    def sent(bucket_bytes: int) -> list[int]:
        simulation = time_only(replace(setting, bucket_bytes=bucket_bytes))
        return [span.args["bytes"] for span in simulation.traces["p0000"].spans if span.lane == "send"]

    parts, whole = sent(1), sent(1 << 20)
    assert 2 * len(parts) == 3 * len(whole) and sum(parts) == sum(whole)


def test_gossip_is_one_event_per_exchange() -> None:
    """A thousand workers in timing mode are cheap: moments of the virtual clock grow with the number of exchanges."""
    moments = {n: time_only(Setting(topology="ring", bucket_bytes=1 << 20), n=n).moments for n in (8, 16)}
    assert moments[16] <= 2.2 * moments[8]


def test_every_mixing_says_what_it_is() -> None:
    """``shoal list`` shows name and first line; traits are readable before construction."""
    found = {entry.name: entry.summary for entry in entries("mixing")}
    assert set(found) >= {"all-reduce", "gossip", "none"}
    for name, summary in found.items():
        assert summary.endswith((".", ").")) and load("mixing", name).strategy.traits is not None
    assert load("mixing", "all-reduce").strategy.traits.replicas_equal
    assert load("mixing", "gossip").strategy.traits.topology
