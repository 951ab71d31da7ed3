"""One training step: micro-batches, and each block's update as soon as its gradient is complete.

The backward pass of the last micro-batch *marks* a block when the last of its gradients is there; the mixing's update
of that block starts at once and communicates while the backward pass goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial

from shoal.data import share, step_samples
from shoal.ingredients import Ingredients
from shoal.job import Job
from shoal.mixing import Mixing
from shoal.optim import LearningRate
from shoal.plan import Plan
from shoal.state import Block, Watch
from shoal.worker.compute import Accumulator, micro_batches
from shoal.worker.meter import Tally
from shoal.world import Work, World


class Trainer:
    """Args:
    ingredients: None in timing mode, where nothing is computed.
    watch: says which block's gradients are complete; None in timing mode.
    """

    def __init__(
        self,
        world: World,
        job: Job,
        plan: Plan,
        *,
        ingredients: Ingredients | None,
        blocks: Sequence[Block],
        watch: Watch | None,
        mixing: Mixing,
        rate: LearningRate,
    ) -> None:
        self._world, self._job, self._plan, self._ingredients = world, job, plan, ingredients
        self._blocks, self._watch, self._mixing, self._rate = blocks, watch, mixing, rate
        self._by_key = {block.key: block for block in blocks}
        self._mine = next(route.share for route in plan.routes if route.segments[0].device == world.me)
        self._flops = plan.costs.forward_flops + plan.costs.backward_flops
        self._marks: dict[Hashable, float] = {block.key: block.spec.ready for block in blocks}

    async def step(self, t: int) -> Tally:
        """Do step `t`; returns this worker's sum of losses and number of targets."""
        t = await self._mixing.begin(t)
        if self._watch is not None:
            self._watch.begin()
            for block in self._blocks:
                block.lr = self._rate(t)
        *first, last = micro_batches(self._samples(t), self._job.batch.micro)
        sums = self._accumulator()
        for m, samples in enumerate(first):
            await self._world.run(partial(sums.add, samples), self._work(samples, t, m))
        updates = []
        compute = partial(self._last, sums, last)
        async for key in self._world.reach(compute, self._work(last, t, len(first), marks=True)):
            update = self._mixing.update(self._by_key[key], t)  # type: ignore[index]
            updates.append(self._world.spawn(update, "update"))
        for update in updates:
            await update
        await self._mixing.end(t)
        return Tally(sums.loss, sums.weight)

    def _last(self, sums: Accumulator, samples: Sequence[int], mark: Callable[[Hashable], None]) -> None:
        assert self._watch is not None

        def ready(block: Block) -> None:
            block.seal(sums.share)
            mark(block.key)

        self._watch.arm(ready)
        sums.add(samples)
        self._watch.flush()

    def _work(self, samples: Sequence[int], t: int, m: int, *, marks: bool = False) -> Work:
        return Work(
            "forward-backward",
            flops=self._flops * len(samples),
            marks=self._marks if marks else {},
            seed=("compute", self._world.me, t, m),
        )

    def _accumulator(self) -> Accumulator:
        tokens = 1 if self._ingredients is None else self._ingredients.corpus.tokens_per_sample
        norm = self._job.batch.size * tokens / len(self._world.peers)
        return Accumulator(self._ingredients, self._job, self._world.device, norm=norm)

    def _samples(self, t: int) -> Sequence[int]:
        """My part of the global batch of step `t`."""
        if self._ingredients is None:
            return range(self._mine)
        ids = step_samples(
            self._job.run.seed, t, samples=len(self._ingredients.corpus.train), size=self._job.batch.size
        )
        shares = {route.segments[0].device: route.share for route in self._plan.routes}
        return share(ids, shares, self._world.me)
