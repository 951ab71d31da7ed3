"""One peer's training run, from the first handshake to the last checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from shoal.job import Job
from shoal.plan import Plan
from shoal.worker.folder import RunFolder
from shoal.world import World


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What the leader (the first peer) tells the person, as it happens. `fields` is ready for JSON.

    ============  ===================================================================================
    kind          fields
    ============  ===================================================================================
    start         peers, steps, first_step, parameters, tokens_per_step, baselines {"bigram": nats}
    step          step, loss (mean over all workers' tokens since the last report), tokens_per_s,
                  sent_bytes, received_bytes (all workers, so far), seconds (world time), consensus
    eval          step, loss (held-out, nats per token), baselines
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
    """What one worker ends with. Losses are nats per token; `digest` is of parameters and buffers, to compare worlds."""

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
    """Train. `should_stop` is polled between computations; when one peer says so, all stop after the same step, save
    once and return. Without a `folder` nothing is written."""
    ...
