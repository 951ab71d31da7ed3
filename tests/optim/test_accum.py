"""AccumAdam and AccumAdamW against the plain loop, against Adam, and across a save in the middle of a window."""

from __future__ import annotations

import copy
import weakref
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import reference
from shoal.errors import UserError
from shoal.optim import _accum
from shoal.optim._accum import AccumOptimizer
from shoal.optim.accum_adam import AccumAdam
from shoal.optim.accum_adamw import AccumAdamW

PAIRS: list[Any] = [
    (AccumAdam, reference.AccumAdam, torch.optim.Adam),
    (AccumAdamW, reference.AccumAdamW, torch.optim.AdamW),
]
BOTH = pytest.mark.parametrize(("ours", "loop", "torchs"), PAIRS)
OURS = pytest.mark.parametrize("ours", [AccumAdam, AccumAdamW])


def gradients(steps: int, shape: tuple[int, ...], seed: int = 0, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for _ in range(steps)]


def lr_at(t: int) -> float:
    return 0.02 / (1 + t % 5)


def train(optimizer: torch.optim.Optimizer, p: nn.Parameter, grads: list[Tensor], first: int = 0) -> list[Tensor]:
    """Step with each gradient, the learning rate written by the caller each time; the parameter after each step."""
    out = []
    for t, g in enumerate(grads, start=first):
        p.grad = g.clone()
        optimizer.param_groups[0]["lr"] = lr_at(t)
        optimizer.step()
        assert torch.equal(p.grad, g), "the gradient belongs to the caller"
        out.append(p.detach().clone())
    return out


@BOTH
@pytest.mark.parametrize("window", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("shape", [(), (1,), (7,), (3, 5), (2, 3, 4)])
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_equals_the_loop(ours: Any, loop: Any, torchs: Any, window: int, shape: tuple[int, ...], decay: float) -> None:
    options = {"betas": (0.8, 0.95), "eps": 1e-6, "weight_decay": decay, "window": window}
    grads = gradients(19, shape, seed=window)
    p = nn.Parameter(gradients(1, shape, seed=99)[0])
    oracle, x = loop(**options), p.detach().numpy().copy()
    for t, got in enumerate(train(ours([p], **options), p, grads)):
        x = oracle.step(x, grads[t].numpy(), lr_at(t))
        np.testing.assert_allclose(got.numpy(), x, rtol=0, atol=1e-12)


@BOTH
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_a_window_of_one_is_adam(ours: Any, loop: Any, torchs: Any, seed: int, decay: float) -> None:
    grads, start = gradients(25, (40,), seed), gradients(1, (40,), seed + 50)[0]
    p, q = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    mine = train(ours([p], weight_decay=decay, window=1), p, grads)
    adam = train(torchs([q], weight_decay=decay), q, grads)
    for a, b in zip(mine, adam, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


@BOTH
def test_only_the_window_mean_reaches_the_moments(ours: Any, loop: Any, torchs: Any) -> None:
    """After whole windows the moments are those of an Adam that saw the mean gradients, one per window."""
    grads = gradients(12, (6,))
    p, q = nn.Parameter(torch.zeros(6, dtype=torch.float64)), nn.Parameter(torch.zeros(6, dtype=torch.float64))
    mine, adam = ours([p], window=4), torchs([q], fused=False, weight_decay=0.0)
    train(mine, p, grads)
    train(adam, q, [torch.stack(grads[i : i + 4]).mean(0) for i in (0, 4, 8)])
    for name in ("exp_avg", "exp_avg_sq"):
        torch.testing.assert_close(mine.state[p][name], adam.state[q][name], rtol=0, atol=1e-14)
    assert not mine.state[p]["accum"].any()
    assert int(mine.state[p]["step"]) == 12


@OURS
def test_the_values_do_not_depend_on_where_a_vector_is_cut(ours: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither on the size of the pieces it is worked on in, nor on the block it lies in; to the bit, in float32."""
    grads, start = gradients(9, (1000,), dtype=torch.float32), gradients(1, (1000,), 5, torch.float32)[0]
    p = nn.Parameter(start.clone())
    whole = train(ours([p], weight_decay=0.1), p, grads)[-1]
    monkeypatch.setattr(_accum, "CHUNK", 96)
    q = nn.Parameter(start.clone())
    assert torch.equal(train(ours([q], weight_decay=0.1), q, grads)[-1], whole)
    blocks = []
    for cut in (slice(0, 333), slice(333, 1000)):
        r = nn.Parameter(start[cut].clone())
        blocks.append(train(ours([r], weight_decay=0.1), r, [g[cut] for g in grads])[-1])
    assert torch.equal(torch.cat(blocks), whole)


@BOTH
def test_parameters_that_do_not_lie_in_one_piece(
    ours: Any, loop: Any, torchs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_accum, "CHUNK", 4)
    grads = gradients(6, (5, 4))
    p = nn.Parameter(torch.zeros(4, 5, dtype=torch.float64).t())
    q = nn.Parameter(torch.zeros(5, 4, dtype=torch.float64))
    torch.testing.assert_close(train(ours([p]), p, grads)[-1], train(ours([q]), q, grads)[-1], rtol=0, atol=0)


@OURS
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("stop", [1, 4, 6, 7])
def test_resuming_in_the_middle_of_a_window_is_bit_exact(
    ours: Any, dtype: torch.dtype, stop: int, tmp_path: Any
) -> None:
    grads, start = gradients(13, (50,), dtype=dtype), gradients(1, (50,), 3, dtype)[0]
    p = nn.Parameter(start.clone())
    straight = train(ours([p], weight_decay=0.1), p, grads)

    q = nn.Parameter(start.clone())
    first = ours([q], weight_decay=0.1)
    train(first, q, grads[:stop])
    torch.save({"x": q.detach(), "state": first.state_dict()}, tmp_path / "saved.pt")
    saved = torch.load(tmp_path / "saved.pt", weights_only=True)

    r = nn.Parameter(saved["x"])
    second = ours([r], lr=123.0, weight_decay=0.1)
    second.load_state_dict(saved["state"])
    resumed = train(second, r, grads[stop:], first=stop)
    assert all(torch.equal(a, b) for a, b in zip(resumed, straight[stop:], strict=True))


@OURS
def test_a_loaded_state_is_a_copy(ours: Any) -> None:
    p, q = nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(3))
    first, second = ours([p]), ours([q])
    train(first, p, gradients(3, (3,), dtype=torch.float32))
    second.load_state_dict(first.state_dict())
    before = copy.deepcopy(first.state_dict()["state"][0])
    train(second, q, gradients(3, (3,), seed=1, dtype=torch.float32))
    after = first.state_dict()["state"][0]
    assert after["window"] == 4
    assert all(torch.equal(before[name], after[name]) for name in ("step", *_accum.VECTORS))


@OURS
def test_state_in_bfloat16_is_kept_in_float32_and_follows_the_loop(ours: Any) -> None:
    p = nn.Parameter(torch.ones(64, dtype=torch.bfloat16))
    oracle = reference.AccumAdam() if ours is AccumAdam else reference.AccumAdamW()
    x, grads = np.ones(64), gradients(60, (64,), dtype=torch.bfloat16)
    optimizer = ours([p])
    for t, got in enumerate(train(optimizer, p, grads)):
        x = oracle.step(x, grads[t].double().numpy(), lr_at(t))
        # Each step rounds to 8 bits: half an ulp of values below 2 is 2^-8, and errors add up as a random walk.
        assert np.abs(got.double().numpy() - x).max() < 2**-8 * (1 + np.sqrt(t + 1) * 2)
    assert all(optimizer.state[p][name].dtype == torch.float32 for name in _accum.VECTORS)
    np.testing.assert_allclose(optimizer.state[p]["exp_avg_sq"].numpy(), oracle.v, rtol=1e-4)


@OURS
def test_float32_follows_the_loop(ours: Any) -> None:
    p = nn.Parameter(torch.ones(64))
    oracle = reference.AccumAdam() if ours is AccumAdam else reference.AccumAdamW()
    x, grads = np.ones(64), gradients(40, (64,), dtype=torch.float32)
    for t, got in enumerate(train(ours([p]), p, grads)):
        x = oracle.step(x, grads[t].double().numpy(), lr_at(t))
        np.testing.assert_allclose(got.double().numpy(), x, atol=2e-6)


@OURS
def test_a_parameter_without_a_gradient_is_left_alone(ours: Any) -> None:
    p, q = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))
    optimizer = ours([p, q], weight_decay=0.5)
    p.grad = torch.ones(3)
    optimizer.step()
    assert torch.equal(q, torch.ones(3)) and q not in optimizer.state
    assert not torch.equal(p, torch.ones(3))


@OURS
def test_a_closure_is_evaluated_with_gradients(ours: Any) -> None:
    p = nn.Parameter(torch.full((2,), 3.0))
    optimizer = ours([p], lr=0.1)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = p.square().sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 18.0
    assert (p < 3.0).all()


@OURS
@pytest.mark.parametrize(
    "bad", [{"window": 0}, {"window": 1.5}, {"betas": (1.0, 0.9)}, {"betas": (0.9, -0.1)}, {"eps": 0.0}]
)
def test_hyperparameters_out_of_range_are_refused(ours: Any, bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        ours([nn.Parameter(torch.zeros(1))], **bad)


@OURS
def test_complex_parameters_are_refused(ours: Any) -> None:
    p = nn.Parameter(torch.zeros(1, dtype=torch.complex64))
    p.grad = torch.zeros_like(p)
    with pytest.raises(TypeError, match="real"):
        ours([p]).step()


def stepped(ours: Any, steps: int) -> tuple[AccumOptimizer, dict[str, Any]]:
    p = nn.Parameter(torch.zeros(5))
    optimizer = ours([p])
    train(optimizer, p, gradients(steps, (5,), dtype=torch.float32))
    return ours([nn.Parameter(torch.zeros(5))]), copy.deepcopy(optimizer.state_dict())


@OURS
def test_a_state_of_another_window_is_refused(ours: Any) -> None:
    _, saved = stepped(ours, 6)
    other = ours([nn.Parameter(torch.zeros(5))], window=8)
    with pytest.raises(UserError, match="windows of 4 steps") as caught:
        other.load_state_dict(saved)
    assert caught.value.key == "optimizer.window" and "window = 4" in caught.value.mend
    assert not other.state and other.param_groups[0]["window"] == 8


@OURS
@pytest.mark.parametrize(
    ("steps", "spoil", "why"),
    [
        (8, lambda s: s["accum"].add_(1), "accumulator at step 8"),
        (6, lambda s: s["exp_avg_sq"].sub_(9), "negative"),
        (6, lambda s: s["exp_avg_sq"].fill_(float("nan")), "NaN"),
        (6, lambda s: s["step"].fill_(-1), "step -1"),
        (6, lambda s: s.pop("accum"), "no accum"),
        (6, lambda s: s.pop("step"), "no step"),
        (6, lambda s: s.update(step=6), "counts its steps in a int"),
        (6, lambda s: s.update(exp_avg=torch.zeros(4)), "shape"),
        (6, lambda s: s.update(window=2), "windows of 2 steps"),
    ],
)
def test_a_state_that_cannot_be_is_refused_and_nothing_changes(ours: Any, steps: int, spoil: Any, why: str) -> None:
    fresh, saved = stepped(ours, steps)
    spoil(saved["state"][0])
    with pytest.raises(UserError, match=why):
        fresh.load_state_dict(saved)
    assert not fresh.state
    # A checkpoint that puts its tensors into `state` directly is found out at the first step.
    p = fresh.param_groups[0]["params"][0]
    p.grad = torch.ones(5)
    fresh.state[p] = saved["state"][0]
    with pytest.raises(UserError, match=why):
        fresh.step()
    assert not p.any()


@OURS
def test_a_state_put_in_place_directly_goes_on_to_the_bit(ours: Any) -> None:
    grads = gradients(11, (5,), dtype=torch.float32)
    p, q = nn.Parameter(torch.zeros(5)), nn.Parameter(torch.zeros(5))
    straight, half = train(ours([p]), p, grads), ours([q])
    train(half, q, grads[:6])
    r = nn.Parameter(q.detach().clone())
    resumed = ours([r])
    resumed.state[r] = copy.deepcopy(half.state[q])
    assert torch.equal(train(resumed, r, grads[6:], first=6)[-1], straight[-1])
    copied = copy.deepcopy(resumed)
    copied.param_groups[0]["params"][0].grad = grads[0]
    copied.step()
    assert torch.equal(r, straight[-1])


@OURS
def test_a_state_that_was_replaced_is_not_kept_alive(ours: Any) -> None:
    p = nn.Parameter(torch.zeros(5))
    optimizer = ours([p])
    train(optimizer, p, gradients(2, (5,), dtype=torch.float32))
    vectors = [weakref.ref(optimizer.state[p][name]) for name in ("step", *_accum.VECTORS)]
    optimizer.state.clear()
    assert [ref() for ref in vectors] == [None] * 4


@OURS
def test_a_state_from_before_the_first_step_and_another_number_of_parameters(ours: Any) -> None:
    fresh, saved = stepped(ours, 0)
    fresh.load_state_dict(saved)
    assert not fresh.state
    other = ours([nn.Parameter(torch.zeros(5))], window=8)
    other.load_state_dict(saved)
    assert other.param_groups[0]["window"] == 8
    with pytest.raises(ValueError):
        ours([nn.Parameter(torch.zeros(5)), nn.Parameter(torch.zeros(5))]).load_state_dict(saved)
