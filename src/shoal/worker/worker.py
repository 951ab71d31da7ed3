"""One peer's training run, from the first handshake to the last checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

from shoal import ingredients as loading
from shoal import optim
from shoal.errors import UserError
from shoal.job import Job
from shoal.models.generate import sample
from shoal.plan import Plan
from shoal.worker.consensus import MeanModel, consensus_distance
from shoal.worker.evaluate import held_out_loss
from shoal.worker.folder import RunFolder
from shoal.worker.handshake import agree
from shoal.worker.meter import Meter, Tally
from shoal.worker.saving import Saver
from shoal.worker.setup import assemble, hello
from shoal.worker.stopping import Stopping
from shoal.worker.trainer import Trainer
from shoal.world import Work, World

PROMPT = "def "
"""What a text sample begins with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What the leader (the first peer) tells the person, as it happens. `fields` is ready for JSON.

    ============  ===================================================================================
    kind          fields
    ============  ===================================================================================
    start         peers, steps, first_step, parameters, tokens_per_step, baselines {"bigram": nats}
    step          step, loss (mean over all workers' tokens since the last report), tokens_per_s,
                  sent_bytes, received_bytes (all workers, so far), seconds (world time)
    eval          step, loss (held-out, nats per token), baselines, consensus (workers' distance from their mean)
    checkpoint    step, path
    stopping      step (a peer was asked to stop; all stop after this step)
    sample        text
    done          step, seconds, loss
    ============  ===================================================================================
    """

    kind: Literal["start", "step", "eval", "checkpoint", "stopping", "sample", "done"]
    fields: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one worker ends with. Losses are nats per token; `digest` is of parameters and buffers."""

    peer: str
    step: int
    stopped: bool
    train_loss: float | None
    eval_loss: float | None
    digest: str
    seconds: float
    sent_bytes: int
    received_bytes: int
    checkpoint: str | None = None


async def work(
    world: World,
    job: Job,
    plan: Plan,
    *,
    folder: RunFolder | None = None,
    resume: bool = False,
    tell: Callable[[Report], None] = lambda report: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Outcome:
    """Train. `should_stop` is polled between steps; when one peer says so, all stop after the same step, save once and
    return. Without a `folder` nothing is written.

    In timing mode only the training steps are rehearsed: evaluation, checkpoints and reports of losses are left out.
    """
    run = _Run(world, job, plan, folder, tell)
    step = first = await run.open(resume=resume)
    stopping = Stopping(world, should_stop)
    try:
        while step < job.run.steps and await stopping.may_begin(step):
            await run.step(step)
            step += 1
            await run.between(step)
        outcome = await run.close(step, first=first)
        await stopping.finish()
        return outcome
    finally:
        stopping.cancel()


class _Run:
    """What happens around the steps: reports, evaluation, checkpoints, the end."""

    def __init__(
        self, world: World, job: Job, plan: Plan, folder: RunFolder | None, tell: Callable[[Report], None]
    ) -> None:
        self._world, self._job, self._plan, self._folder = world, job, plan, folder
        self._leads = world.me == world.peers[0]
        self._tell = tell if self._leads else _silent
        self._parts = assemble(world, job, plan)
        self._meter = Meter(world)
        self._since = Tally()
        self._reported_at = world.now()
        self._train_loss: float | None = None
        self._eval_loss: float | None = None
        self._evaluated = self._saved = -1
        self._distance = 0.0
        self._checkpoint: str | None = None
        self._mean: MeanModel | None = None
        self._trainer = Trainer(
            world,
            job,
            plan,
            ingredients=self._parts.ingredients,
            blocks=self._parts.blocks,
            watch=self._parts.watch,
            mixing=self._parts.mixing,
            rate=optim.learning_rate(
                job.schedule.name,
                base=job.optimizer.lr,
                steps=job.run.steps,
                warmup=job.schedule.warmup,
                floor=job.schedule.floor,
            ),
        )
        self._saver = self._make_saver()

    async def open(self, *, resume: bool) -> int:
        """Shake hands, resume if asked; returns the first step to do."""
        first = 0
        parts = self._parts
        if parts.ingredients is not None:
            offers = self._saver.offers() if resume and self._saver else []
            mine = hello(self._job, self._plan, parts.ingredients, offers)
            found = await agree(self._world, mine)
            if resume and found is None:
                where = None if self._folder is None else str(self._folder.checkpoints)
                raise UserError("no whole checkpoint that all peers hold", file=where, mend="start without --resume")
            if found is not None and self._saver is not None:
                await self._world.run(partial(self._saver.load, found), Work("load", lane="to_device"))
                first = self._saved = found
                self._world.event("resume", step=found)
        self._world.event("start", step=first)
        if self._leads:
            self._tell(Report(kind="start", fields=self._start_fields(first)))
        return first

    async def step(self, t: int) -> None:
        """Do step `t` and count it."""
        tally = await self._trainer.step(t)
        self._world.event("step", step=t, loss=float.hex(tally.loss), weight=tally.weight)
        self._since.add(tally.loss, tally.weight)

    async def between(self, done: int) -> None:
        """After `done` steps: what is due every so often."""
        run = self._job.run
        last = done == run.steps
        if done % run.log_every == 0 or last:
            self._report(done)
        if self._parts.ingredients is None:
            return
        if run.eval_every and done % run.eval_every == 0:
            await self._evaluate(done)
        if run.checkpoint_every and done % run.checkpoint_every == 0:
            await self._save(done)

    async def close(self, done: int, *, first: int) -> Outcome:
        """Leave nothing in flight; save, if stopped early; say what came of it."""
        stopped = done < self._job.run.steps
        await self._parts.mixing.settle()
        if stopped:
            self._tell(Report(kind="stopping", fields={"step": done}))
        elif self._parts.ingredients is not None:
            await self._evaluate(done)
        if done > first:
            await self._save(done)
        if self._saver is not None:
            await self._saver.flush()
        await self._meter.flush()
        if not stopped:
            self._show_sample()
        digest = self._digest(done)
        seconds = self._world.now()
        self._tell(Report(kind="done", fields={"step": done, "seconds": seconds, "loss": self._eval_loss}))
        return Outcome(
            peer=self._world.me,
            step=done,
            stopped=stopped,
            train_loss=self._train_loss,
            eval_loss=self._eval_loss,
            digest=digest,
            seconds=seconds,
            sent_bytes=self._world.sent_bytes,
            received_bytes=self._world.received_bytes,
            checkpoint=self._checkpoint,
        )

    def _report(self, done: int) -> None:
        world, since = self._world, self._since
        began, self._reported_at = self._reported_at, world.now()
        values = [since.loss, since.weight, float(world.sent_bytes), float(world.received_bytes)]
        self._train_loss = since.mean()
        self._since = Tally()

        def then(rows: list[list[float]]) -> None:
            loss, weight, sent, received = (sum(column) for column in zip(*rows, strict=True))
            seconds = self._world.now() - began
            fields = {
                "step": done,
                "loss": loss / weight if weight else None,
                "tokens_per_s": weight / seconds if seconds > 0 else None,
                "sent_bytes": int(sent),
                "received_bytes": int(received),
                "seconds": self._world.now(),
            }
            self._tell(Report(kind="step", fields=fields))

        self._meter.gather("metric", done, values, then)

    async def _evaluate(self, done: int) -> None:
        """Held-out loss of the mean model and the workers' distance from it; once per step at most."""
        ingredients = self._parts.ingredients
        if self._evaluated == done or ingredients is None or len(ingredients.corpus.held_out) == 0:
            return
        self._evaluated = done
        mean = await self._mean_model(done)
        distance = self._distance
        agrees = self._parts.mixing.traits.agrees
        loss, weight = await held_out_loss(self._world, self._job, self._plan, ingredients, mean, own=not agrees)

        def then(rows: list[list[float]]) -> None:
            loss, weight, _ = (sum(column) for column in zip(*rows, strict=True))
            self._eval_loss = loss / weight if weight else None
            fields = {
                "step": done,
                "loss": self._eval_loss,
                "consensus": consensus_distance([row[2] for row in rows]) if agrees else None,
                "baselines": dict(ingredients.corpus.baselines()),
            }
            self._tell(Report(kind="eval", fields=fields))

        self._meter.gather("eval", done, [loss, weight, distance], then)

    async def _mean_model(self, done: int) -> MeanModel:
        assert self._parts.ingredients is not None
        if self._mean is None:
            traits = self._parts.mixing.traits
            self._mean = MeanModel(
                self._world,
                self._parts.ingredients.model,
                self._parts.blocks,
                average_parameters=traits.agrees and not traits.replicas_equal,
                average_buffers=traits.agrees,
            )
        self._distance = await self._mean.refresh(done)
        return self._mean

    async def _save(self, done: int) -> None:
        if self._saver is None or self._saved == done:
            return
        self._saved = done
        self._world.event("digest", step=done, digest=self._digest_now())
        await self._saver.save(done)

    def _make_saver(self) -> Saver | None:
        if self._folder is None or self._parts.ingredients is None:
            return None
        return Saver(
            self._world,
            self._job,
            self._parts.ingredients.model,
            self._parts.blocks,
            self._parts.mixing,
            self._folder.checkpoints,
            self._whole,
        )

    def _whole(self, step: int, path: Path) -> None:
        self._checkpoint = str(path)
        self._tell(Report(kind="checkpoint", fields={"step": step, "path": str(path)}))

    def _show_sample(self) -> None:
        """The leader lets the mean model write, if the data is text."""
        ingredients, mean = self._parts.ingredients, self._mean
        if self._world.me != self._world.peers[0] or not self._job.run.sample or ingredients is None or mean is None:
            return
        corpus = ingredients.corpus
        if corpus.vocab is None:
            return
        ids = sample(
            mean.copy,
            corpus.encode(PROMPT),
            tokens=self._job.run.sample,
            context=corpus.tokens_per_sample,
            temperature=0.8,
            generator=self._world.rng("sample"),
        )
        self._tell(Report(kind="sample", fields={"text": corpus.decode(ids)}))

    def _digest(self, done: int) -> str:
        if self._parts.ingredients is None:
            return ""
        digest = self._digest_now()
        self._world.event("digest", step=done, digest=digest)
        return digest

    def _digest_now(self) -> str:
        assert self._parts.ingredients is not None
        model = self._parts.ingredients.model
        return loading.digest_of([*model.parameters(), *model.buffers()])

    def _start_fields(self, first: int) -> dict[str, Any]:
        job, parts = self._job, self._parts
        tokens = 1 if parts.ingredients is None else parts.ingredients.corpus.tokens_per_sample
        return {
            "peers": list(self._world.peers),
            "steps": job.run.steps,
            "first_step": first,
            "parameters": sum(piece.numel for spec in self._plan.blocks for piece in spec.slices),
            "tokens_per_step": job.batch.size * tokens,
            "baselines": {} if parts.ingredients is None else dict(parts.ingredients.corpus.baselines()),
        }


def _silent(report: Report) -> None:
    """Only the leader talks."""
