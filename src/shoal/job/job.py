"""The job file as types. Unknown keys are refused; quantities carry units.

A strategy's own options stay raw here (`extra`) and are validated by the strategy's ``Options`` when it is built, so
reading a job never imports torch.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from shoal.units import ByteCount, Seconds, Share


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)


class _Strategy(BaseModel):
    """A table whose own keys are known here and whose other keys belong to the strategy it names."""

    model_config = ConfigDict(extra="allow", frozen=True)

    @property
    def extra(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


class Model(_Table):
    factory: str = "shoal.models.gpt:GPT"
    args: dict[str, Any] = Field(default_factory=dict)
    loss: str = "shoal.models.losses:next_token"


class Data(_Table):
    """`source` is ``"stdlib"`` (the Python standard library's own source code), ``"files"`` or ``"module:callable"``."""

    source: str = "stdlib"
    files: list[str] = Field(default_factory=list)
    tokenizer: str = "bytes"
    sequence: int = Field(128, ge=2)
    held_out: Share = 0.05
    args: dict[str, Any] = Field(default_factory=dict)


class Batch(_Table):
    """`size` samples per step over all workers together; each worker computes its share in micro-batches of `micro`."""

    size: int = Field(32, ge=1)
    micro: int = Field(8, ge=1)


class Optim(_Strategy):
    name: str = "adamw"
    lr: float = Field(1e-3, gt=0)
    weight_decay: float = Field(0.0, ge=0)
    clip: float | None = Field(None, gt=0)


class Schedule(_Table):
    name: Literal["constant", "linear", "cosine"] = "cosine"
    warmup: int = Field(0, ge=0)
    floor: float = Field(0.1, ge=0, le=1)


class Mix(_Strategy):
    name: str = "all-reduce"
    topology: str | None = None
    bucket: ByteCount = 4 * 1024**2


class Run(_Table):
    steps: int = Field(100, ge=1)
    seed: int = Field(0, ge=0)
    precision: Literal["float32", "bfloat16", "float64"] = "float32"
    threads: int | None = Field(None, ge=1)
    collective: Literal["ring", "engine"] = "ring"
    transport: str = "streams"
    log_every: int = Field(10, ge=1)
    eval_every: int = Field(0, ge=0)
    eval_batches: int = Field(8, ge=1)
    checkpoint_every: int = Field(0, ge=0)
    keep: int = Field(2, ge=1)
    peer_deadline: Seconds = 15.0
    wait_deadline: Seconds = 600.0
    stop_grace: Seconds = 30.0
    sample: int = Field(0, ge=0)
    tensorboard: bool = False
    max_bad_steps: int = Field(10, ge=1)


class Simulate(_Table):
    """How a rehearsal departs from the ideal. `straggler` is a device's name, `slowdown` its factor."""

    jitter: Literal["none", "normal", "log-normal", "exponential"] = "none"
    spread: Share = 0.1
    straggler: str | None = None
    slowdown: float = Field(4.0, ge=1)
    seed: int = Field(0, ge=0)


class Job(_Table):
    name: str = Field("job", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    cluster: str | None = None
    model: Model = Field(default_factory=lambda: Model())
    data: Data = Field(default_factory=lambda: Data())
    batch: Batch = Field(default_factory=lambda: Batch())
    optimizer: Optim = Field(default_factory=lambda: Optim())
    schedule: Schedule = Field(default_factory=lambda: Schedule())
    mixing: Mix = Field(default_factory=lambda: Mix())
    run: Run = Field(default_factory=lambda: Run())
    simulate: Simulate = Field(default_factory=lambda: Simulate())
