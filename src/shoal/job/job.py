"""The job file as types. Unknown keys are refused; quantities carry units.

A strategy's own options stay raw here (`extra`) and are validated by the strategy's ``Options`` when a run is built
(`shoal.job.validate_options`), so reading a job never imports torch. The descriptions of the keys are what
``shoal init`` writes as comments.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, model_validator

from shoal import schema, toml
from shoal.errors import UserError
from shoal.files import Source
from shoal.units import FILE, ByteCount, Seconds, Share, WrongValueError

_ATTRIBUTE = r"^[A-Za-z_][\w.]*:[A-Za-z_][\w.]*$"  # package.module:callable


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class _Strategy(BaseModel):
    """A table whose own keys are known here and whose other keys belong to the strategy it names."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True, allow_inf_nan=False)

    @property
    def extra(self) -> dict[str, Any]:
        """The keys that belong to the strategy, as they stand in the file."""
        return dict(self.model_extra or {})


class Model(_Table):
    """What is trained: any ``nn.Module``, by the name of what makes it."""

    factory: str = Field(
        default="shoal.models.gpt:GPT",
        pattern=_ATTRIBUTE,
        description="What makes the nn.Module, as package.module:callable. Modules in the job's folder are found, too.",
    )
    args: dict[str, Any] = Field(default_factory=dict, description="Keyword arguments of the factory.")
    loss: str = Field(
        default="shoal.models.losses:next_token",
        pattern=_ATTRIBUTE,
        description="The loss, as package.module:callable; loss(model, batch) gives (sum over targets, their number).",
    )


class Data(_Table):
    """What it is trained on."""

    source: str = Field(
        default="stdlib",
        description='"stdlib" (the source code of Python itself), "files", or your own package.module:callable.',
    )
    files: list[str] = Field(
        default_factory=list,
        examples=[["corpus/*.txt"]],
        description='Paths or globs of text files, for source = "files"; relative to the job\'s folder.',
    )
    tokenizer: str = Field(
        default="bytes",
        min_length=1,
        description='"bytes" (256 tokens), or the path of a tokenizer.json (needs shoal[hf]).',
    )
    sequence: int = Field(
        default=128,
        ge=2,
        description="Tokens per sample. Lower it if memory runs out; raise it if the model forgets context.",
    )
    held_out: Share = Field(
        default=0.05, ge=0, lt=1, description='Share of the data kept for evaluation, never trained on: "5 %" or 0.05.'
    )
    args: dict[str, Any] = Field(default_factory=dict, description="Keyword arguments of your own source.")

    @model_validator(mode="after")
    def _files_fit_source(self) -> Data:
        if self.source == "files" and not self.files:
            raise WrongValueError("no files", 'write e.g. files = ["corpus/*.txt"]', key="files")
        if self.source != "files" and self.files:
            raise WrongValueError(
                f'only used with source = "files", but source is "{self.source}"', 'write source = "files"', key="files"
            )
        if self.source not in ("stdlib", "files") and ":" not in self.source:
            mend = schema.nearest(self.source, ["stdlib", "files", "package.module:callable"])
            raise WrongValueError("no such source", mend, key="source")
        return self


def _micro(before: dict[str, Any]) -> int:
    return min(8, before.get("size", 8))


class Batch(_Table):
    """How many samples make a step. Each worker computes its share of `size` in micro-batches of `micro`."""

    size: int = Field(default=32, ge=1, description="Samples per step, over all workers together.")
    micro: int = Field(
        default_factory=_micro,
        ge=1,
        description="Samples per micro-batch (default: 8, or size if that is less). Lower it if memory runs out;"
        " raise it if the device is not kept busy. The result of a step does not depend on it.",
    )

    @model_validator(mode="after")
    def _micro_fits(self) -> Batch:
        if self.micro > self.size:
            raise WrongValueError(
                f"a micro-batch cannot hold more samples than a step ({self.size})",
                f"write {self.size} or less",
                key="micro",
            )
        return self


class Optim(_Strategy):
    """The local optimizer that the mixing calls. Its own options (betas, accumulation, …) stand in the same table."""

    name: str = Field(default="adamw", min_length=1, description="One of `shoal list optim`, or torch.optim:NAME.")
    lr: float = Field(
        default=1e-3,
        gt=0,
        description="Peak learning rate. Lower it if the loss jumps or is NaN; raise it if it crawls.",
    )
    weight_decay: float = Field(
        default=0.0, ge=0, description="Weight decay of matrices (biases, norms and other vectors go without)."
    )
    clip: float | None = Field(
        default=None,
        gt=0,
        examples=[1.0],
        description="Clip the gradient to this global norm. Set it if single steps throw the loss up.",
    )


class Schedule(_Table):
    """The learning rate over the steps."""

    name: Literal["constant", "linear", "cosine"] = Field(default="cosine", description="Its shape after the warm-up.")
    warmup: int = Field(
        default=0,
        ge=0,
        description="Steps over which it rises to its peak. Raise it if the first steps diverge. "
        "A shorter run ends before the peak.",
    )
    floor: float = Field(
        default=0.1, ge=0, le=1, description='Where it ends, as a share of its peak ("constant" has no floor).'
    )


class Mix(_Strategy):
    """How the workers agree. The mixing's own options stand in the same table."""

    name: str = Field(default="all-reduce", min_length=1, description="One of `shoal list mixing`.")
    topology: str | None = Field(
        default=None,
        examples=["one-peer-exponential"],
        description="Who talks to whom, for mixings that need it: one of `shoal list topology`.",
    )
    bucket: ByteCount = Field(
        default=4 * 1024**2,
        gt=0,
        description="Parameters that are sent together. Lower it if communication starts too late to hide behind the"
        " backward pass; raise it if latency dominates (many small messages).",
    )


class Run(_Table):
    """The course of a run."""

    steps: int = Field(default=100, ge=1, description="Steps to train.")
    seed: int = Field(default=0, ge=0, description="Decides everything random: weights, order of the data, dropout.")
    precision: Literal["float32", "bfloat16", "float64"] = Field(
        default="float32", description='"bfloat16" keeps float32 parameters and computes under autocast.'
    )
    threads: int | None = Field(
        default=None,
        ge=1,
        examples=[2],
        description="CPU threads per worker (default: the cores, divided by the workers on the machine)."
        " Set it if results must be equal to the bit on different machines.",
    )
    collective: Literal["ring", "engine"] = Field(
        default="ring",
        description='"ring": messages, equal to the bit in every world; "engine": that of torch.distributed, for GPUs.',
    )
    transport: str = Field(
        default="streams", min_length=1, description="How bytes travel: one of `shoal list transport`."
    )
    log_every: int = Field(default=10, ge=1, description="Steps between two lines of progress.")
    eval_every: int = Field(
        default=0, ge=0, description="Steps between two evaluations on held-out data; 0: only at the end."
    )
    eval_batches: int = Field(
        default=8, ge=1, description="Micro-batches per evaluation. Raise it if the figures are noisy."
    )
    checkpoint_every: int = Field(
        default=0,
        ge=0,
        description="Steps between two checkpoints; 0: only when it is stopped. Lower it if machines are often lost.",
    )
    keep: int = Field(default=2, ge=1, description="Checkpoints kept; older ones are deleted.")
    peer_deadline: Seconds = Field(
        default=15.0,
        gt=0,
        description="A peer that is silent for this long is lost. Raise it if slow but living peers are given up.",
    )
    wait_deadline: Seconds = Field(
        default=600.0,
        gt=0,
        description="Longest wait for a message from a living peer. Raise it if the slowest worker takes longer.",
    )
    stop_grace: Seconds = Field(
        default=30.0, gt=0, description="After Ctrl-C, time to save a checkpoint before workers are killed."
    )
    sample: int = Field(
        default=0, ge=0, description="Tokens of text to sample from the trained model at the end; 0: none."
    )
    tensorboard: bool = Field(default=False, description="Write TensorBoard files, too (needs shoal[tensorboard]).")
    max_bad_steps: int = Field(
        default=10,
        ge=1,
        description="Steps in a row with gradients that are not finite (each is skipped) before giving up.",
    )


class Simulate(_Table):
    """How a rehearsal in virtual time departs from the ideal."""

    jitter: Literal["none", "normal", "log-normal", "exponential"] = Field(
        default="none", description="Distribution of the random part of each computation's time."
    )
    spread: Share = Field(
        default=0.1, ge=0, le=1, description="Standard deviation of the jitter, as a share of the computation's time."
    )
    straggler: str | None = Field(
        default=None, examples=["worker-3"], description="Name of a device that is slow throughout."
    )
    slowdown: float = Field(default=4.0, ge=1, description="How many times slower the straggler computes.")
    seed: int = Field(default=0, ge=0, description="Seeds the jitter, apart from run.seed.")


class Job(_Table):  # noqa: PLW1641 (it holds dicts, so it has no hash)
    """What to train, how, and for how long."""

    name: str = Field(
        default="job",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$",
        description="Names the folder of the runs: letters, digits, dots, dashes and underscores.",
    )
    folder: str = Field(
        default_factory=os.getcwd,
        examples=["."],
        description="Where relative paths and your own modules start from (default: the folder of this file).",
    )
    cluster: str | None = Field(
        default=None,
        examples=["cluster.toml"],
        description="Path of the cluster file; without it, or --cluster, the run is on this machine alone.",
    )
    model: Model = Field(default_factory=Model)
    data: Data = Field(default_factory=Data)
    batch: Batch = Field(default_factory=Batch)
    optimizer: Optim = Field(default_factory=Optim)
    schedule: Schedule = Field(default_factory=Schedule)
    mixing: Mix = Field(default_factory=Mix)
    run: Run = Field(default_factory=Run)
    simulate: Simulate = Field(default_factory=Simulate)

    _source: Source | None = PrivateAttr(None)

    def __eq__(self, other: object) -> bool:
        """Equal content; which file it came from does not matter."""
        return isinstance(other, Job) and self.model_dump() == other.model_dump()

    @property
    def base(self) -> Path:
        """The folder that relative paths and the person's own modules start from (absolute)."""
        return Path(self.folder)

    @property
    def source(self) -> Source:
        """Where each key stands in the file."""
        return self._source or Source(raw=self.model_dump(context=FILE))

    def error(self, key: str, problem: str, *, mend: str = "", shown: bool = True) -> UserError:
        """A complaint about `key` (``"run.steps"``) that names its file, line and value."""
        return self.source.error(key, problem, mend=mend, shown=shown)

    def check_peers(self, peers: Sequence[str]) -> None:
        """Check what the job says about devices against those that there are.

        Raises:
            UserError: no device has the straggler's name.
        """
        straggler = self.simulate.straggler
        if straggler is not None and straggler not in peers:
            raise self.error("simulate.straggler", "no such device", mend=schema.nearest(straggler, list(peers)))


def load(path: str | Path, overrides: Sequence[str] = ()) -> Job:
    """The job in the file at `path`.

    Args:
        overrides: ``"run.steps=20"``, as given to ``--set``.

    Raises:
        UserError: names file, line, key, value and mend of every problem.
    """
    source = Source.read(path, overrides=overrides)
    job = source.validate(Job)
    folder = Path(path).parent / (job.folder if "folder" in job.model_fields_set else ".")
    placed = job.model_copy(update={"folder": str(folder.resolve())})
    placed._source = source
    return placed


def dump(job: Job) -> str:
    """`job` as a complete job file, every key written out; it loads back to an equal job from any folder."""
    tables = job.model_dump(context=FILE, exclude_none=True)
    return "# A complete job: every key, with the value that was used.\n" + toml.dumps(tables)
