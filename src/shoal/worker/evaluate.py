"""Held-out loss of the mean model, shared out over the workers; training state is never touched.

The same held-out batches every time: the first `eval_batches` micro-batches of the held-out set, batch k going to
worker k mod n. The leader adds the sums up.
"""

from __future__ import annotations

from functools import partial

from shoal.ingredients import Ingredients
from shoal.job import Job
from shoal.plan import Plan
from shoal.worker.compute import evaluate_batch
from shoal.worker.consensus import MeanModel
from shoal.world import Work, World


async def held_out_loss(
    world: World, job: Job, plan: Plan, ingredients: Ingredients, mean: MeanModel, *, own: bool
) -> tuple[float, float]:
    """This worker's part of the held-out evaluation: (sum of losses, weight).

    Args:
        own: replicas do not agree, so each worker evaluates its own model on all batches.
    """
    held_out, micro = ingredients.corpus.held_out, job.batch.micro
    batches = min(job.run.eval_batches, -(-len(held_out) // micro))
    n, me = len(world.peers), world.peers.index(world.me)
    loss = weight = 0.0
    for k in range(batches) if own else range(me, batches, n):
        samples = range(k * micro, min((k + 1) * micro, len(held_out)))
        work = Work("evaluate", flops=plan.costs.forward_flops * len(samples))
        compute = partial(evaluate_batch, mean.copy, ingredients, job, world.device, samples)
        part = await world.run(compute, work, timing=(0.0, 0.0))
        loss, weight = loss + part[0], weight + part[1]
    return loss, weight
