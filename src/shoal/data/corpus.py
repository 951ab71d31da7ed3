"""The face of all data: a corpus has a training and a held-out dataset of numbered samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor


class Dataset(Protocol):
    """Samples numbered 0 … len-1."""

    def __len__(self) -> int: ...
    def batch(self, samples: Sequence[int]) -> tuple[Tensor, ...]:
        """CPU tensors whose first dimension runs over `samples`."""
        ...


class Corpus(Protocol):
    """`tokens_per_sample` is 1 where samples are not sequences. `vocab` and `decode` are None where there is no text."""

    train: Dataset
    held_out: Dataset
    tokens_per_sample: int
    vocab: int | None

    def decode(self, tokens: Sequence[int]) -> str: ...
    def encode(self, text: str) -> list[int]: ...
    def baselines(self) -> Mapping[str, float]:
        """Nats per token that trivial models reach on this corpus: ``{"unigram": 3.24, "bigram": 2.42}``; or empty."""
        ...

    def digest(self) -> str:
        """Peers with different data find out before the first step."""
        ...


def load(
    *,
    source: str,
    files: Sequence[str],
    tokenizer: str,
    sequence: int,
    held_out: float,
    args: Mapping[str, Any],
    base: Path,
) -> Corpus:
    """Load the corpus that a job's ``[data]`` table describes; relative paths are relative to `base` (the job's folder)."""
    ...
