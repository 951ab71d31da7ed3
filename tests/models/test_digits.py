"""The digits example: any module and any data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from shoal import data, job, models

EXAMPLE = Path(__file__).parents[2] / "examples" / "digits" / "job.toml"


def corpus_of(described: job.Job) -> Any:
    table = described.data
    return data.load(
        source=table.source,
        files=table.files,
        tokenizer=table.tokenizer,
        sequence=table.sequence,
        held_out=table.held_out,
        args=table.args,
        base=described.base,
    )


def accuracy(model: nn.Module, dataset: Any) -> float:
    images, labels = dataset.batch(range(len(dataset)))
    model.eval()
    with torch.no_grad():
        return float((model(images).argmax(1) == labels).float().mean())


@pytest.mark.parametrize(("factory", "args"), [(None, None), ("digits:mlp", {"width": 48})])
def test_the_example_learns_digits(factory: str | None, args: dict[str, Any] | None) -> None:
    pytest.importorskip("sklearn")
    described = job.load(EXAMPLE)
    corpus = corpus_of(described)
    model = models.build(
        factory or described.model.factory,
        described.model.args if args is None else args,
        seed=described.run.seed,
        base=described.base,
        context={"sequence": described.data.sequence},
    )
    loss = models.load_loss(described.model.loss, described.base)
    optimizer = torch.optim.AdamW(model.parameters(), lr=described.optimizer.lr)
    for step in range(60):
        ids = data.step_samples(0, step, samples=len(corpus.train), size=described.batch.size)
        total, weight = loss(model, corpus.train.batch(ids))
        optimizer.zero_grad()
        (total / weight).backward()
        optimizer.step()
    assert accuracy(model, corpus.held_out) > 0.9


def test_the_digits_are_split_without_overlap() -> None:
    pytest.importorskip("sklearn")
    described = job.load(EXAMPLE)
    corpus = corpus_of(described)
    assert (len(corpus.train), len(corpus.held_out)) == (1438, 359)
    images = {tuple(row.flatten().tolist()) for part in (corpus.train, corpus.held_out) for row in part.images}
    assert len(images) == 1797
    assert corpus.vocab is None
    assert corpus.digest() == corpus_of(described).digest()
    assert (
        corpus.digest()
        != corpus_of(
            described.model_copy(update={"data": described.data.model_copy(update={"held_out": 0.5})})
        ).digest()
    )
