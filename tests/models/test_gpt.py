"""The small GPT against plain arithmetic."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from shoal import models
from shoal.models.gpt import GPT, rotations, turn
from shoal.models.losses import next_token

SHAPES = [
    {"vocab": 11, "sequence": 9, "layers": 1, "width": 8, "heads": 1},
    {"vocab": 30, "sequence": 16, "layers": 2, "width": 24, "heads": 3},
    {"vocab": 256, "sequence": 8, "layers": 3, "width": 32, "heads": 4},
]


def make(seed: int = 0, **shape: int | float) -> GPT:
    model = models.build("shoal.models.gpt:GPT", shape, seed=seed)
    assert isinstance(model, GPT)
    return model


def ids_for(model: GPT, batch: int = 3, *, seed: int = 0) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.randint(0, model.embed.num_embeddings, (batch, model.sequence), generator=g)


def plain(model: GPT, ids: list[int]) -> Tensor:
    """Logits [T, V] by the definition: position by position and head by head, rotations as complex numbers."""
    p = dict(model.named_parameters())
    x = p["embed.weight"][torch.tensor(ids)]
    half = model.head_width // 2
    heads = x.shape[1] // model.head_width
    angles = [[t * 10_000 ** (-i / half) for i in range(half)] for t in range(len(ids))]
    phase = torch.polar(torch.ones(len(ids), half, dtype=torch.float64), torch.tensor(angles, dtype=torch.float64))

    def norm(x: Tensor, name: str) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        return centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt() * p[f"{name}.weight"]

    def rotated(x: Tensor) -> Tensor:
        return torch.complex(x[:, :half].contiguous(), x[:, half:].contiguous()) * phase

    for n in range(len(model.blocks)):
        b = f"blocks.{n}"
        q, k, v = (norm(x, f"{b}.attend_norm") @ p[f"{b}.attend.qkv.weight"].T).chunk(3, dim=-1)
        out = torch.zeros_like(x)
        for h in range(heads):
            at = slice(2 * half * h, 2 * half * (h + 1))
            scores = (rotated(q[:, at]) @ rotated(k[:, at]).conj().T).real / math.sqrt(2 * half)
            for t in range(len(ids)):
                out[t, at] = scores[t, : t + 1].softmax(0) @ v[: t + 1, at]
        x = x + out @ p[f"{b}.attend.out.weight"].T
        inner = (norm(x, f"{b}.feed_norm") @ p[f"{b}.feed.up.weight"].T).clamp(min=0).square()
        x = x + inner @ p[f"{b}.feed.down.weight"].T
    return norm(x, "norm") @ p["embed.weight"].T


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("seed", [0, 1])
def test_it_computes_what_a_transformer_is_defined_to(shape: dict[str, int], seed: int) -> None:
    model = make(seed, **shape).double()
    for parameter in model.parameters():
        parameter.data.mul_(3)  # away from the small initial values, where everything is nearly linear
    ids = ids_for(model, seed=seed)
    expected = torch.stack([plain(model, row) for row in ids.tolist()])
    torch.testing.assert_close(model(ids), expected, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("shape", SHAPES)
def test_it_has_as_many_parameters_as_it_says(shape: dict[str, int]) -> None:
    model = make(**shape)
    V, L, D = shape["vocab"], shape["layers"], shape["width"]
    assert sum(p.numel() for p in model.parameters()) == V * D + L * (12 * D * D + 2 * D) + D
    assert not list(model.buffers())


@pytest.mark.parametrize("shape", SHAPES)
def test_a_later_token_does_not_change_earlier_logits(shape: dict[str, int]) -> None:
    model = make(**shape).double()
    ids = ids_for(model)
    before = model(ids)
    for at in range(ids.shape[1]):
        changed = ids.clone()
        changed[:, at] = (changed[:, at] + 1) % shape["vocab"]
        after = model(changed)
        assert torch.equal(after[:, :at], before[:, :at])
        assert not torch.equal(after[:, at], before[:, at])


def test_input_and_output_weights_are_one_parameter() -> None:
    """A tied weight is listed once and gets the sum of both gradients."""
    model = make(**SHAPES[0]).double()
    ids = ids_for(model)
    model(ids).sum().backward()
    assert [name for name, p in model.named_parameters() if p.shape == (11, 8)] == ["embed.weight"]
    assert model.embed.weight.grad is not None
    unused = sorted(set(range(11)) - set(ids.flatten().tolist()))
    with torch.no_grad():
        as_output = model.norm(hidden(model, ids)).sum((0, 1))
    torch.testing.assert_close(model.embed.weight.grad[unused], as_output.expand(len(unused), -1))


def hidden(model: GPT, ids: Tensor) -> Tensor:
    """What goes into the last norm, [B, T, D]."""
    seen: list[Tensor] = []
    handle = model.norm.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    model(ids)
    handle.remove()
    return seen[0]


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_gradients_are_those_of_finite_differences(seed: int) -> None:
    model = make(seed, **SHAPES[1]).double()
    ids = ids_for(model, seed=seed)
    batch = ids[:, :-1], ids[:, 1:]
    next_token(model, batch)[0].backward()
    g = torch.Generator().manual_seed(seed)
    step = 1e-6
    for parameter in model.parameters():
        assert parameter.grad is not None
        direction = torch.randn(parameter.shape, generator=g, dtype=torch.float64)
        losses = []
        for sign in (1, -1):
            with torch.no_grad():
                parameter.add_(direction, alpha=sign * step)
                losses.append(float(next_token(model, batch)[0]))
                parameter.sub_(direction, alpha=sign * step)
        slope = (losses[0] - losses[1]) / (2 * step)
        assert slope == pytest.approx(float((parameter.grad * direction).sum()), rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("mode", ["float32", "float64", "autocast"])
def test_the_same_input_gives_the_same_bits(mode: str) -> None:
    runs = []
    for _ in range(2):
        model = make(5, **SHAPES[2], dropout=0.1)
        model = model.double() if mode == "float64" else model
        torch.manual_seed(1)
        with torch.autocast("cpu", torch.bfloat16, enabled=mode == "autocast"):
            ids = ids_for(model)
            total, _ = next_token(model, (ids[:, :-1], ids[:, 1:]))
        total.backward()
        runs.append([total, *(p.grad for p in model.parameters())])
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))


def test_autocast_is_close_to_float32() -> None:
    model = make(**SHAPES[2])
    ids = ids_for(model)
    with torch.autocast("cpu", torch.bfloat16):
        rough = model(ids)
    assert rough.dtype == torch.bfloat16
    torch.testing.assert_close(rough.float(), model(ids), atol=0.02, rtol=0.05)


def test_a_model_in_bfloat16_stays_in_it() -> None:
    model = make(**SHAPES[2]).bfloat16()
    assert model(ids_for(model)).dtype == torch.bfloat16


def test_an_untrained_model_knows_nothing() -> None:
    """Its first loss is that of guessing: the start is neither saturated nor dead."""
    model = make(vocab=256, sequence=64, layers=3, width=160, heads=4)
    ids = ids_for(model, batch=8)
    total, weight = next_token(model, (ids[:, :-1], ids[:, 1:]))
    assert float((total / weight).detach()) == pytest.approx(math.log(256), abs=0.1)


def test_dropout_acts_in_training_alone() -> None:
    model, plain_model = make(**SHAPES[1], dropout=0.5), make(**SHAPES[1])
    ids = ids_for(model)
    assert not torch.equal(model(ids), model(ids))
    assert torch.equal(model.eval()(ids), plain_model(ids))


def test_the_first_positions_of_a_long_window_are_those_of_a_short_one() -> None:
    model = make(**SHAPES[1]).double()
    ids = ids_for(model)
    torch.testing.assert_close(model(ids)[:, :5], model(ids[:, :5]), atol=1e-12, rtol=0)


def test_attention_sees_distances_and_not_places() -> None:
    g = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, 1, 1, 1, 8, generator=g, dtype=torch.float64)
    cos, sin = rotations(20, 8, like=q)

    def score(i: int, j: int) -> float:
        return float((turn(q, (cos[i : i + 1], sin[i : i + 1])) * turn(k, (cos[j : j + 1], sin[j : j + 1]))).sum())

    assert score(3, 1) == pytest.approx(score(17, 15), abs=1e-12)
    assert score(3, 1) != pytest.approx(score(3, 2), abs=1e-3)


def test_it_can_be_built_on_the_meta_device_and_filled_later() -> None:
    model = make(**SHAPES[1])
    with torch.device("meta"):
        empty = make(**SHAPES[1])
    assert empty(torch.zeros(2, 5, dtype=torch.int64, device="meta")).shape == (2, 5, 30)
    empty.to_empty(device="cpu").load_state_dict(model.state_dict())
    ids = ids_for(model)
    assert torch.equal(empty(ids), model(ids))


def test_it_learns() -> None:
    """A repeated phrase is known by heart after 60 steps."""
    model = make(vocab=20, sequence=24, layers=2, width=32, heads=4)
    ids = torch.arange(25).remainder(7).expand(4, -1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    loss = math.inf
    for _ in range(60):
        total, weight = next_token(model, (ids[:, :-1], ids[:, 1:]))
        optimizer.zero_grad()
        (total / weight).backward()
        optimizer.step()
        loss = float((total / weight).detach())
    assert loss < 0.05


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"width": 20, "heads": 3}, "multiple of 2 x heads = 6"),
        ({"width": 12, "heads": 4}, "multiple of 2 x heads = 8"),
        ({"layers": 0}, "at least 1"),
        ({"dropout": 1.0}, "dropout"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(wrong: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GPT(**wrong)  # type: ignore[arg-type]


def test_a_window_longer_than_it_was_built_for_is_refused() -> None:
    with pytest.raises(ValueError, match="17 tokens in a model built for 16"):
        make(**SHAPES[1])(torch.zeros(1, 17, dtype=torch.int64))


def test_it_is_a_module_without_surprises() -> None:
    """Every parameter is used, and only matrices and norm weights exist."""
    model = make(**SHAPES[1])
    model(ids_for(model)).sum().backward()
    assert all(p.grad is not None for p in model.parameters())
    assert {p.ndim for p in model.parameters()} == {1, 2}
    assert not [m for m in model.modules() if isinstance(m, nn.Linear) and m.bias is not None]
