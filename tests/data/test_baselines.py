"""Entropies against plain counting."""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.data import baselines
from shoal.data.baselines import entropies


def counted(tokens: list[int]) -> dict[str, float]:
    """The documented formulas with dictionaries."""
    singles, pairs, firsts = Counter(tokens), Counter(pairwise(tokens)), Counter(tokens[:-1])
    n = len(tokens)
    return {
        "unigram": -sum(c / n * math.log(c / n) for c in singles.values()),
        "bigram": -sum(c / (n - 1) * math.log(c / firsts[a]) for (a, _), c in pairs.items()),
    }


@settings(deadline=None)
@given(tokens=st.lists(st.integers(0, 9), min_size=2, max_size=80))
def test_entropies_are_those_of_the_formulas(tokens: list[int]) -> None:
    assert entropies(np.array(tokens, np.uint8), 10) == pytest.approx(counted(tokens), abs=1e-12)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_large_vocabularies_and_chunks_change_nothing(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = (np.random.default_rng(seed).zipf(1.5, 5000) % 300).astype(np.uint16)
    dense = entropies(tokens, 300)
    monkeypatch.setattr(baselines, "DENSE", 100)
    monkeypatch.setattr(baselines, "CHUNK", 7)
    sparse = entropies(tokens[:900], 300)
    assert sparse == pytest.approx(counted(tokens[:900].tolist()), abs=1e-12)
    assert dense == pytest.approx(counted(tokens.tolist()), abs=1e-12)


def test_known_values() -> None:
    alternating = np.array([0, 1] * 500 + [0], np.uint8)
    found = entropies(alternating, 2)
    assert found["bigram"] == pytest.approx(0, abs=1e-12)
    assert found["unigram"] == pytest.approx(math.log(2), abs=1e-5)
    assert entropies(np.zeros(100, np.uint8), 256) == pytest.approx({"unigram": 0.0, "bigram": 0.0})


def test_very_long_rows_are_judged_by_their_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = np.random.default_rng(0).integers(0, 5, 1000).astype(np.uint8)
    monkeypatch.setattr(baselines, "LIMIT", 100)
    assert entropies(tokens, 5) == pytest.approx(counted(tokens[:100].tolist()))
