"""From a job and a plan to the parts of a worker: model, blocks, gate, mixing."""

from __future__ import annotations

import platform
from dataclasses import dataclass

import torch

import shoal
from shoal import ingredients as loading
from shoal import optim, registry
from shoal.errors import UserError
from shoal.ingredients import Ingredients
from shoal.job import Job, validate_options
from shoal.mixing import Context, Mixing
from shoal.plan import Plan
from shoal.state import Block, Gate, Watch, make_blocks
from shoal.worker.handshake import Hello
from shoal.world import Owners, World


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What a worker is made of. `ingredients` and `watch` are None in timing mode."""

    ingredients: Ingredients | None
    blocks: list[Block]
    watch: Watch | None
    mixing: Mixing


def assemble(world: World, job: Job, plan: Plan) -> Parts:
    """Build this peer's part of the plan.

    Raises:
        UserError: the plan is of other peers or another model, or a strategy cannot be used.
    """
    if plan.peers != world.peers:
        raise UserError("the plan is of other devices", value=list(plan.peers), mend="make the plan anew")
    owners = Owners(0, world.peers, island=plan.island)
    ingredients = loading.load(job, device=world.device) if world.numeric else None
    cost = plan.costs.update_bytes_per_element
    if ingredients is None:
        blocks = [Block.shape_only(spec, owners, update_bytes_per_element=cost) for spec in plan.blocks]
        watch = None
    else:
        blocks = make_blocks(
            ingredients.model,
            plan.blocks,
            owners,
            lambda flat, decay: optim.build(
                job.optimizer.name,
                [flat],
                lr=job.optimizer.lr,
                weight_decay=job.optimizer.weight_decay if decay else 0.0,
                options=job.optimizer.extra,
            ),
            update_bytes_per_element=cost,
        )
        watch = Watch(blocks)
    return Parts(ingredients=ingredients, blocks=blocks, watch=watch, mixing=_mixing(world, job, plan, blocks))


def hello(job: Job, plan: Plan, ingredients: Ingredients, checkpoints: list[int]) -> Hello:
    """What this peer is about to train, for the others to compare."""
    return Hello(
        plan=plan.digest(),
        corpus=ingredients.corpus.digest(),
        engine=f"shoal {shoal.__version__}, torch {torch.__version__}, Python {platform.python_version()}",
        checkpoints=tuple(checkpoints),
        model=tuple(loading.describe(ingredients.model)),
    )


def _mixing(world: World, job: Job, plan: Plan, blocks: list[Block]) -> Mixing:
    (sync,) = plan.sync
    strategy = registry.strategy("mixing", sync.mixing)
    options = validate_options(job).get("mixing") or registry.NoOptions()
    shape = None if sync.topology is None else registry.strategy("topology", sync.topology)()
    gate = Gate(
        world,
        blocks,
        clip=job.optimizer.clip,
        max_bad_steps=job.run.max_bad_steps,
        deadline_s=job.run.wait_deadline,
    )
    return strategy(Context(world=world, blocks=blocks, gate=gate, topology=shape, options=options))
