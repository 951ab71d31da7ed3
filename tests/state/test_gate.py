"""The gate decides once per step for all blocks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn

from shoal.errors import Diverged, Late
from shoal.state import Block, Gate
from shoal.world import World
from shoal.worlds.simulation import Simulation
from state.building import blocks_of
from worlds.clusters import flat


def blocks_with(gradients: Sequence[float], weight: float = 1.0) -> list[Block]:
    """One block per number, its mean gradient that number."""
    model = nn.ParameterList(nn.Parameter(torch.zeros(1)) for _ in gradients)
    blocks = blocks_of(model, bucket_bytes=1)[::-1]
    set_gradients(blocks, gradients, weight)
    return blocks


def set_gradients(blocks: Sequence[Block], gradients: Sequence[float], weight: float = 1.0) -> None:
    for block, gradient in zip(blocks, gradients, strict=True):
        block.g.zero_()
        block.g[0] = gradient * weight
        block.seal(weight)


def ask(
    blocks: Sequence[Block], *, order: Sequence[int] | None = None, t: int = 0, **options: Any
) -> tuple[Any, Simulation]:
    """All blocks ask in this order, a second apart; gives their answers with the times of these."""

    async def work(world: World) -> list[tuple[float, float]]:
        gate = Gate(world, blocks, **options)

        async def one(delay: int, block: Block) -> tuple[float, float]:
            await world.sleep(delay)
            return await gate.scale(block, t), round(world.now())

        places = range(len(blocks)) if order is None else order
        tasks = [world.spawn(one(delay, blocks[place]), "ask") for delay, place in enumerate(places)]
        return [await task for task in tasks]

    simulation = Simulation(flat(1))
    return simulation.run(work)["p0000"], simulation


@pytest.mark.parametrize("weight", [1.0, 0.25])
def test_clipping_is_by_the_global_norm(weight: float) -> None:
    """Defect T.7-7: not by each block's own; weights do not matter, the gradient is a mean."""
    answers, _ = ask(blocks_with([3.0, 0.0, 4.0], weight), clip=1.0)
    assert [scale for scale, _ in answers] == pytest.approx([1 / (5 + 1e-6)] * 3)


def test_short_gradients_are_left_alone() -> None:
    answers, _ = ask(blocks_with([0.3, 0.4]), clip=1.0)
    assert [scale for scale, _ in answers] == [1.0, 1.0]


def test_nobody_passes_before_the_last_has_come() -> None:
    """Lesson 12."""
    answers, _ = ask(blocks_with([1.0, 2.0, 3.0]), clip=1.0)
    assert [at for _, at in answers] == [2, 2, 2]


def test_without_a_reason_nobody_waits() -> None:
    answers, _ = ask(blocks_with([1.0, 2.0, 3.0]), refuse_nonfinite=False)
    assert answers == [(1.0, 0), (1.0, 1), (1.0, 2)]


def test_the_order_of_asking_does_not_change_a_bit() -> None:
    """Lesson 3: squares are added in the order of blocks."""
    gradients = [1e8, 1.0, 1e-8, 3.0, 1e4]
    scales = {
        ask(blocks_with(gradients), order=order, clip=0.1)[0][0][0] for order in ([0, 1, 2, 3, 4], [4, 2, 0, 3, 1])
    }
    assert len(scales) == 1


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_bad_gradient_is_refused_for_all_blocks(bad: float) -> None:
    """Defect T.7-17: one block may not step while another skips."""
    answers, simulation = ask(blocks_with([1.0, bad, 2.0]), t=7)
    assert [scale for scale, _ in answers] == [0.0] * 3
    (event,) = (event for event in simulation.traces["p0000"].events if event.kind == "nonfinite")
    assert event.fields == {"step": 7, "mine": True}


def test_anothers_bad_gradient_is_not_called_mine() -> None:
    blocks = blocks_with([1.0, 2.0])
    blocks[1].g[0] = math.nan  # as a reduction with a bad peer would leave it
    answers, simulation = ask(blocks)
    assert [scale for scale, _ in answers] == [0.0] * 2
    (event,) = (event for event in simulation.traces["p0000"].events if event.kind == "nonfinite")
    assert event.fields["mine"] is False


def test_bad_steps_are_counted_in_a_row() -> None:
    """Case C8."""
    blocks = blocks_with([1.0, 1.0])

    async def work(world: World) -> list[float]:
        gate, scales = Gate(world, blocks, max_bad_steps=2), []
        for t, value in enumerate([math.nan, 1.0, math.nan, math.nan]):
            set_gradients(blocks, [value, 1.0])
            tasks = [world.spawn(gate.scale(block, t), "ask") for block in blocks]
            scales += [await task for task in tasks]
        return scales

    with pytest.raises(Diverged, match="peer 'p0000' at step 3: gradients were not finite in 2 steps in a row"):
        Simulation(flat(1)).run(work)


def test_steps_are_not_mixed() -> None:
    """Two steps may be at the gate at once; each block's answer is its own step's."""
    blocks = blocks_with([3.0, 4.0])

    async def work(world: World) -> list[float]:
        gate = Gate(world, blocks, clip=1.0)
        early = world.spawn(gate.scale(blocks[0], 0), "ask")
        await world.sleep(1)
        blocks[0].g[0] = 6.0
        late = world.spawn(gate.scale(blocks[0], 1), "ask")
        await world.sleep(1)
        first = await gate.scale(blocks[1], 0)
        blocks[1].g[0] = 8.0
        second = await gate.scale(blocks[1], 1)
        return [await early, first, await late, second]

    scales = Simulation(flat(1)).run(work)["p0000"]
    assert scales == pytest.approx([1 / 5, 1 / 5, 1 / 10, 1 / 10], rel=1e-6)


def test_a_block_that_never_comes_is_named() -> None:
    """Nothing hangs; the deadline counts from the last block that came."""
    blocks = blocks_with([1.0, 2.0, 3.0])

    async def work(world: World) -> None:
        gate = Gate(world, blocks, deadline_s=5.0)
        world.spawn(gate.scale(blocks[0], 2), "ask")
        await world.sleep(4.0)
        await gate.scale(blocks[2], 2)

    simulation = Simulation(flat(1))
    with pytest.raises(Late, match=rf"'p0000' at step 2: no gradient of {blocks[1].spec.name} for 5 s"):
        simulation.run(work)
    assert simulation.now == pytest.approx(9.0)


def test_asking_twice_is_a_mistake() -> None:
    blocks = blocks_with([1.0, 2.0])

    async def work(world: World) -> None:
        gate = Gate(world, blocks)
        world.spawn(gate.scale(blocks[0], 0), "ask")
        await world.sleep(1)
        await gate.scale(blocks[0], 0)

    with pytest.raises(ValueError, match="asked twice at step 0"):
        Simulation(flat(1)).run(work)
