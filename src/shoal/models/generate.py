"""Text from a trained model, one token at a time, for any module that maps ids [B, T] to logits [B, T, V]."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Generator, nn


def sample(
    model: nn.Module,
    prompt: Sequence[int],
    *,
    tokens: int,
    context: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    generator: Generator | None = None,
) -> list[int]:
    """Continue `prompt` by `tokens` ids drawn from the model's predictions.

    The module's train and eval modes and the default random generator are left as they were.

    Args:
        prompt: at least one id.
        context: how many of the last ids the model is shown, at most; the length that it was trained with.
        temperature: logits are divided by it; 0 takes the most likely id every time.
        top_k: draw among the k most likely ids only.
        generator: a CPU generator to draw from; None means one seeded with 0.

    Returns:
        `prompt` and the new ids after it.
    """
    if not prompt:
        raise ValueError("a prompt needs at least one token")
    if temperature < 0 or context < 1 or (top_k is not None and top_k < 1):
        raise ValueError(f"temperature {temperature}, context {context} or top_k {top_k} is out of range")
    generator = generator or torch.Generator().manual_seed(0)
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    ids = list(prompt)
    with _evaluating(model), torch.inference_mode():
        for _ in range(tokens):
            window = torch.tensor([ids[-context:]], device=device)  # [1, T]
            logits = model(window)[0, -1].double().cpu()  # [V]
            ids.append(_draw(logits, temperature, top_k, generator))
    return ids


def _draw(logits: torch.Tensor, temperature: float, top_k: int | None, generator: Generator) -> int:
    if temperature == 0:
        return int(logits.argmax())
    if top_k is not None and top_k < len(logits):
        kept, at = logits.topk(top_k)
        logits = torch.full_like(logits, -torch.inf).scatter(0, at, kept)
    return int(torch.multinomial((logits / temperature).softmax(0), 1, generator=generator))


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Eval mode inside; afterwards every module is in the mode it was in, even where they differed."""
    modes = [(module, module.training) for module in model.modules()]
    state = torch.default_generator.get_state()
    model.eval()
    try:
        yield
    finally:
        torch.default_generator.set_state(state)
        for module, training in modes:
            module.training = training
