"""What a job names, loaded: the model, its loss and the corpus. The same call gives every peer the same ingredients."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from shoal import data, models
from shoal.costs import Loss
from shoal.errors import UserError
from shoal.job import Job

DTYPES = {"float32": torch.float32, "bfloat16": torch.float32, "float64": torch.float64}
"""Dtype of parameters by ``run.precision``; bfloat16 means float32 parameters under autocast."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ingredients:
    model: nn.Module
    loss: Loss
    corpus: data.Corpus


def load(job: Job, *, device: torch.device | None = None) -> Ingredients:
    """Load what `job` names. Weights depend on ``run.seed`` alone.

    Raises:
        UserError: the factory, the loss or the data cannot be used; names the job's key.
    """
    base = Path(job.base)
    corpus = load_corpus(job)
    context = {"vocab": corpus.vocab, "sequence": job.data.sequence}
    model = models.build(
        job.model.factory,
        job.model.args,
        seed=job.run.seed,
        base=base,
        context={name: value for name, value in context.items() if value is not None},
    )
    model = model.to(DTYPES[job.run.precision]) if job.run.precision == "float64" else model
    model.train()
    return Ingredients(
        model=model if device is None else model.to(device),
        loss=models.load_loss(job.model.loss, base=base),
        corpus=corpus,
    )


def load_corpus(job: Job) -> data.Corpus:
    """The corpus of `job`, checked to hold at least one global batch's worth of variety.

    Raises:
        UserError: the corpus cannot be loaded or has no samples.
    """
    table = job.data
    corpus = data.load(
        source=table.source,
        files=table.files,
        tokenizer=table.tokenizer,
        sequence=table.sequence,
        held_out=table.held_out,
        args=table.args,
        base=Path(job.base),
    )
    if len(corpus.train) == 0:
        raise UserError("no training samples", key="data", mend="give more data or a shorter data.sequence")
    return corpus


def describe(model: nn.Module) -> list[tuple[str, str]]:
    """(name, description) of every parameter and buffer, in order; the description ends with a digest of the values."""
    named = [*model.named_parameters(), *model.named_buffers()]
    return [(name, f"{tuple(t.shape)} {t.dtype} {digest_of([t])}") for name, t in named]


def digest_of(tensors: list[Tensor]) -> str:
    """A digest of the tensors' bytes: equal digests mean equal to the bit."""
    h = hashlib.sha256()
    for t in tensors:
        flat = t.detach().cpu().contiguous()
        h.update(flat.reshape(-1).view(torch.uint8).numpy().tobytes() if flat.numel() else b"")
    return h.hexdigest()[:16]


def model_digest(model: nn.Module) -> str:
    """One digest over names, shapes, dtypes and values of all parameters and buffers."""
    return hashlib.sha256(repr(describe(model)).encode()).hexdigest()[:16]
