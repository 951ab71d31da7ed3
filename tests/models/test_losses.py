"""Losses are sums and counts, so that the way a batch is split cannot change the result."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from shoal.errors import UserError
from shoal.models.losses import IGNORE, classification, next_token, regression


class Fixed(nn.Module):
    """Answers every input with the rows of its table."""

    def __init__(self, table: Tensor) -> None:
        super().__init__()
        self.table = nn.Parameter(table)

    def forward(self, x: Tensor) -> Tensor:
        return self.table[x]


def model_of_losses(*nats: float) -> Fixed:
    """Two classes; input i predicts class 1 with a cross entropy of nats[i]."""
    return Fixed(torch.tensor([[math.log(math.expm1(loss)), 0.0] for loss in nats], dtype=torch.float64))


def test_masked_tokens_do_not_weigh() -> None:
    """Case D2: five tokens of loss 1 on one rank, one of loss 7 on the other, make 2.0 and not 4.0."""
    model = model_of_losses(1.0, 7.0)
    ranks = [
        (torch.tensor([[0, 0, 0, 0, 0, 0]]), torch.tensor([[1, 1, 1, 1, 1, IGNORE]])),
        (torch.tensor([[1, 0, 1, 1, 1, 1]]), torch.tensor([[1] + [IGNORE] * 5])),
    ]
    totals, weights = zip(*(next_token(model, rank) for rank in ranks), strict=True)
    assert [int(w) for w in weights] == [5, 1]
    assert float(torch.stack(totals).detach().sum() / sum(weights)) == pytest.approx(2.0, abs=1e-12)


@pytest.mark.parametrize("loss", [next_token, classification])
def test_no_valid_target_is_zero_and_not_nan(loss: object) -> None:
    """Case D2: such a rank contributes nothing."""
    model = model_of_losses(1.0)
    shape = (1, 3) if loss is next_token else (3,)
    batch = torch.zeros(shape, dtype=torch.int64), torch.full(shape, IGNORE)
    total, weight = loss(model, batch)  # type: ignore[operator]
    total.backward()
    assert (float(total.detach()), int(weight)) == (0.0, 0)
    assert model.table.grad is not None
    assert not model.table.grad.any()


@settings(deadline=None)
@given(seed=st.integers(0, 1000), cut=st.integers(0, 6))
def test_the_split_into_micro_batches_changes_nothing(seed: int, cut: int) -> None:
    """Case D2: sums and gradients of two micro-batches are those of the whole."""
    g = torch.Generator().manual_seed(seed)
    inputs = torch.randint(0, 9, (6, 4), generator=g)
    targets = torch.randint(0, 5, (6, 4), generator=g)
    targets[torch.rand(6, 4, generator=g) < 0.4] = IGNORE
    whole, parts = Fixed(torch.randn(9, 5, generator=g).double()), Fixed(torch.zeros(9, 5).double())
    parts.load_state_dict(whole.state_dict())
    total, weight = next_token(whole, (inputs, targets))
    total.backward()
    sums = [next_token(parts, (inputs[at], targets[at])) for at in (slice(cut), slice(cut, None))]
    for part, _ in sums:
        part.backward()
    assert float(sum(t.detach() for t, _ in sums)) == pytest.approx(float(total.detach()), abs=1e-12)
    assert int(sum(w for _, w in sums)) == int(weight)
    torch.testing.assert_close(parts.table.grad, whole.table.grad, atol=1e-12, rtol=0)


def test_low_precision_logits_are_summed_in_float32() -> None:
    logits = torch.randn(64, 10, generator=torch.Generator().manual_seed(0)).bfloat16()
    inputs, targets = torch.arange(64).view(1, 64), torch.arange(64).view(1, 64) % 10
    total, _ = next_token(Fixed(logits), (inputs, targets))
    expected = F.cross_entropy(logits.double(), targets[0], reduction="sum")
    assert total.dtype == torch.float32
    assert float(total.detach()) == pytest.approx(float(expected), rel=1e-6)


def test_classification_takes_a_label_per_sample_or_per_place() -> None:
    g = torch.Generator().manual_seed(0)
    logits, labels = torch.randn(4, 3, generator=g).double(), torch.tensor([0, 2, IGNORE, 1])
    total, weight = classification(nn.Identity(), (logits, labels))
    assert int(weight) == 3
    assert float(total) == pytest.approx(-sum(float(logits[i].log_softmax(0)[labels[i]]) for i in (0, 1, 3)))
    total, weight = classification(nn.Identity(), (torch.zeros(2, 5, 3, 3), torch.zeros(2, 3, 3, dtype=torch.int64)))
    assert int(weight) == 18
    assert float(total) == pytest.approx(18 * math.log(5))


def test_regression_sums_squares_and_skips_missing_targets() -> None:
    predictions = torch.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    total, weight = regression(nn.Identity(), (predictions, torch.tensor([[0.0, math.nan], [5.0, 4.0]])))
    total.backward()
    assert (float(total.detach()), int(weight)) == (5.0, 3)
    assert predictions.grad is not None
    assert predictions.grad.tolist() == [[2.0, 0.0], [-4.0, 0.0]]


def test_regression_refuses_to_broadcast() -> None:
    with pytest.raises(UserError, match=r"predicts \(4, 1\) for targets \(4,\)"):
        regression(nn.Identity(), (torch.zeros(4, 1), torch.zeros(4)))
