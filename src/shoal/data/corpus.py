"""The face of all data: a corpus has a training and a held-out dataset of numbered samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from torch import Tensor


class Dataset(Protocol):
    """Samples numbered 0 … len-1."""

    def __len__(self) -> int: ...
    def batch(self, samples: Sequence[int]) -> tuple[Tensor, ...]:
        """CPU tensors whose first dimension runs over `samples`."""
        ...


class Corpus(Protocol):
    """What a source of data hands out. A subclass inherits the answers for data that is not text.

    `tokens_per_sample` is 1 where samples are not sequences. `vocab` is None where there is no text; then nobody calls
    `encode` and `decode`. `held_out` may be empty.
    """

    train: Dataset
    held_out: Dataset
    tokens_per_sample: int
    vocab: int | None

    def decode(self, tokens: Sequence[int]) -> str:
        raise TypeError("this corpus has no text")

    def encode(self, text: str) -> list[int]:
        raise TypeError("this corpus has no text")

    def baselines(self) -> Mapping[str, float]:
        """Nats per token that trivial models reach on this corpus: ``{"unigram": 3.24, "bigram": 2.42}``; or empty."""
        return {}

    def digest(self) -> str:
        """Peers with different data find out before the first step. Depends on content, not on paths or times."""
        ...
