"""Text generation from any module that maps ids to logits."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from shoal import models
from shoal.models import sample


class Successor(nn.Module):
    """Predicts the next number after the last id, with a second choice one further; notes what it is shown."""

    def __init__(self, vocab: int = 10, margin: float = 2.0) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(vocab, vocab))
        self.norm = nn.BatchNorm1d(3)
        self.shown: list[list[int]] = []
        with torch.no_grad():
            for i in range(vocab):
                self.table[i, (i + 1) % vocab] = 2 * margin
                self.table[i, (i + 2) % vocab] = margin

    def forward(self, ids: Tensor) -> Tensor:
        assert not self.training
        assert not torch.is_grad_enabled()
        self.shown.append(ids[0].tolist())
        return self.table[ids]


def test_zero_temperature_takes_the_likeliest() -> None:
    assert sample(Successor(), [3], tokens=4, context=8, temperature=0) == [3, 4, 5, 6, 7]
    assert sample(Successor(), [3, 9], tokens=0, context=8) == [3, 9]


def test_the_model_is_shown_at_most_the_context() -> None:
    model = Successor()
    sample(model, [0, 1, 2], tokens=3, context=4, temperature=0)
    assert model.shown == [[0, 1, 2], [0, 1, 2, 3], [1, 2, 3, 4]]


def test_the_generator_decides() -> None:
    model = Successor(margin=0.2)
    one, two, other = (
        sample(model, [0], tokens=30, context=4, generator=torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)
    )
    assert one == two != other
    assert sample(model, [0], tokens=30, context=4) == sample(model, [0], tokens=30, context=4)


def test_top_k_leaves_only_the_k_likeliest() -> None:
    model = Successor(margin=0.2)
    ids = sample(model, [0], tokens=200, context=1, top_k=2)
    assert {(b - a) % 10 for a, b in pairwise(ids)} == {1, 2}
    assert sample(model, [0], tokens=5, context=1, top_k=1) == [0, 1, 2, 3, 4, 5]
    assert len(sample(model, [0], tokens=5, context=1, top_k=99)) == 6


def test_frequencies_are_those_of_the_softmax() -> None:
    model = Successor(vocab=3, margin=0.7)
    ids = sample(model, [0], tokens=4000, context=1, temperature=0.5)
    expected = (model.table[0].detach() / 0.5).softmax(0)  # of steps 0, +1, +2
    steps = torch.tensor([(b - a) % 3 for a, b in pairwise(ids)])
    torch.testing.assert_close(steps.bincount(minlength=3) / 4000, expected, atol=0.03, rtol=0)


def test_modes_and_random_state_are_left_as_they_were() -> None:
    model = Successor()
    model.train()
    model.norm.eval()
    torch.manual_seed(3)
    expected = torch.rand(3)
    torch.manual_seed(3)
    sample(model, [0], tokens=3, context=2)
    assert torch.equal(torch.rand(3), expected)
    assert model.training
    assert not model.norm.training


def test_modes_are_restored_after_a_failure() -> None:
    model = Successor()
    with pytest.raises(IndexError):
        sample(model, [77], tokens=1, context=1)
    assert model.training
    assert model.norm.training


def test_a_gpt_with_dropout_is_sampled_without_it() -> None:
    args = {"vocab": 20, "sequence": 8, "layers": 1, "width": 16, "heads": 2, "dropout": 0.5}
    model = models.build("shoal.models.gpt:GPT", args, seed=0)
    assert sample(model, [1, 2], tokens=20, context=8) == sample(model, [1, 2], tokens=20, context=8)


@pytest.mark.parametrize(
    "wrong", [{"prompt": []}, {"temperature": -1.0}, {"top_k": 0}, {"context": 0}], ids=lambda wrong: next(iter(wrong))
)
def test_senseless_requests_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        sample(Successor(), wrong.pop("prompt", [1]), **{"tokens": 1, "context": 4, **wrong})
