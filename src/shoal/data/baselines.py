"""What trivial models reach on a row of tokens: the entropies that a trained model has to beat.

With c(a) the count of token a among N tokens and c(a, b) the count of the pair "a then b" among the N - 1 pairs:

* unigram: H(X) = -Σ c(a)/N · ln(c(a)/N), the loss of the best model that looks at nothing.
* bigram: H(X₂ | X₁) = -Σ c(a, b)/(N-1) · ln(c(a, b)/c(a, ·)), the loss of the best model that looks at one token.

Both are in nats per token and are fitted to the very tokens that they are measured on, so no unigram or bigram table
does better there. Where the vocabulary is large for the text, most pairs occur once and the bigram figure is far too
good to be a yardstick for unseen text.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

LIMIT = 1 << 27
"""Of a longer row only the first LIMIT tokens (134 million) are counted."""

DENSE = 1 << 24
"""Pairs are counted in a table while it has at most so many entries; beyond, only pairs that occur are kept."""

CHUNK = 1 << 22
"""Pairs looked at at a time."""


def entropies(tokens: NDArray[Any], vocab: int) -> dict[str, float]:
    """``{"unigram": H(X), "bigram": H(X₂ | X₁)}`` in nats per token, over the first `LIMIT` tokens.

    Args:
        tokens: unsigned integers below `vocab`, at least two of them.
    """
    tokens = tokens[:LIMIT]
    singles = np.zeros(vocab, np.int64)
    for start in range(0, len(tokens), CHUNK):
        singles += np.bincount(tokens[start : start + CHUNK], minlength=vocab)
    pairs = _dense(tokens, vocab) if vocab * vocab <= DENSE else _sparse(tokens, vocab)
    firsts = singles.copy()
    firsts[tokens[-1]] -= 1  # the last token begins no pair
    total = len(tokens)
    return {
        "unigram": float(np.log(total) - _sum_c_log_c(singles) / total),
        "bigram": (_sum_c_log_c(firsts) - _sum_c_log_c(pairs)) / (total - 1),
    }


def _dense(tokens: NDArray[Any], vocab: int) -> NDArray[np.int64]:
    counts = np.zeros(vocab * vocab, np.int64)
    for codes in _pair_codes(tokens, vocab):
        counts += np.bincount(codes, minlength=vocab * vocab)
    return counts


def _sparse(tokens: NDArray[Any], vocab: int) -> NDArray[np.int64]:
    known, counts = np.empty(0, np.int64), np.empty(0, np.int64)
    for codes in _pair_codes(tokens, vocab):
        new, new_counts = np.unique(codes, return_counts=True)
        merged, where = np.unique(np.concatenate((known, new)), return_inverse=True)
        total = np.zeros(len(merged), np.int64)
        np.add.at(total, where, np.concatenate((counts, new_counts)))
        known, counts = merged, total
    return counts


def _pair_codes(tokens: NDArray[Any], vocab: int) -> Iterator[NDArray[np.int64]]:
    """first · vocab + second of every pair of neighbours, in chunks."""
    for start in range(0, len(tokens) - 1, CHUNK):
        part = tokens[start : start + CHUNK + 1].astype(np.int64)
        yield part[:-1] * vocab + part[1:]


def _sum_c_log_c(counts: NDArray[np.int64]) -> float:
    counts = counts[counts > 0]
    return float((counts * np.log(counts)).sum())
