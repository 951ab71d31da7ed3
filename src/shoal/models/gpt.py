"""A small GPT: a decoder-only transformer that reads in one sitting.

    tokens [B, T] → embedding → `layers` × (attention, feed-forward) → norm → logits [B, T, V]

Pre-norm residual blocks (Radford et al. 2019), output weights tied to the embedding (Press & Wolf 2017), no biases.
Two parts were chosen by what a model of 0.8 million parameters loses on held-out Python code after 300 steps of 2,048
bytes, in nats per byte (`docs/data.md` has the trial):

* positions: rotary (Su et al. 2021, arXiv 2104.09864) 1.86, learned 2.08;
* feed-forward: squared ReLU (So et al. 2021, arXiv 2109.08668) 1.72, SwiGLU the same with one matrix more, GELU 1.86.

Shapes in comments: B samples, T positions, D width, H heads, V vocabulary.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class GPT(nn.Module):
    """Maps token ids, int64 [B, T] with T ≤ `sequence`, to logits [B, T, `vocab`].

    It has vocab·width + layers·(12·width² + 2·width) + width parameters.

    Args:
        vocab: number of token ids.
        sequence: longest window it is used with.
        layers: number of blocks.
        width: size of the residual stream; an even multiple of `heads`.
        heads: attention heads.
        dropout: probability of dropping embeddings, attention weights and what a block adds, in train mode.

    Raises:
        ValueError: the sizes do not fit together.
    """

    def __init__(
        self,
        vocab: int = 256,
        sequence: int = 128,
        layers: int = 4,
        width: int = 128,
        heads: int = 4,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if min(vocab, sequence, layers, width, heads) < 1 or not 0 <= dropout < 1:
            raise ValueError("sizes must be at least 1 and dropout in [0, 1)")
        if width % (2 * heads):
            raise ValueError(
                f"width {width} must be a multiple of 2 x heads = {2 * heads} (rotary positions turn pairs)"
            )
        self.sequence, self.head_width = sequence, width // heads
        self.embed = nn.Embedding(vocab, width)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width, bias=False)
        self._initialise()

    def forward(self, ids: Tensor) -> Tensor:
        if ids.shape[1] > self.sequence:
            raise ValueError(f"a window of {ids.shape[1]} tokens in a model built for {self.sequence}")
        x = self.dropout(self.embed(ids))  # [B, T, D]
        turns = rotations(ids.shape[1], self.head_width, like=x)
        for block in self.blocks:
            x = block(x, turns)
        return F.linear(self.norm(x), self.embed.weight)  # [B, T, V]

    def _initialise(self) -> None:
        """Normal with deviation 0.02; what writes into the residual stream is scaled down by the number of writers."""
        writers = 2 * len(self.blocks)
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:
                last = name.endswith(("attend.out.weight", "feed.down.weight"))
                nn.init.normal_(parameter, std=0.02 / writers**0.5 if last else 0.02)


class Block(nn.Module):
    """x + attention(norm x), then x + feed-forward(norm x)."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.attend_norm = nn.LayerNorm(width, bias=False)
        self.attend = Attention(width, heads, dropout)
        self.feed_norm = nn.LayerNorm(width, bias=False)
        self.feed = FeedForward(width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
        x = x + self.dropout(self.attend(self.attend_norm(x), turns))
        return x + self.dropout(self.feed(self.feed_norm(x)))


class Attention(nn.Module):
    """Causal self-attention: a position sees itself and earlier ones."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
        B, T, D = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, self.heads, D // self.heads).permute(2, 0, 3, 1, 4)  # each [B, H, T, D/H]
        dropout = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(turn(q, turns), turn(k, turns), v, dropout_p=dropout, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(B, T, D))


class FeedForward(nn.Module):
    """Two linear maps, four times as wide inside, with the square of a ReLU between."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.up(x))
        return self.down(h * h)


def rotations(length: int, head_width: int, *, like: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines [length, head_width / 2] of the angles by which positions turn pairs of coordinates.

    Pair i of position t turns by t · 10000^(−2i / head_width), so that q·k depends on the distance of positions alone.
    They are computed at every call: it is cheap, any length works, and a module without buffers can be moved, averaged
    and built on the meta device.
    """
    dtype = torch.promote_types(like.dtype, torch.float32)
    frequency = 10_000.0 ** (-torch.arange(0, head_width, 2, device=like.device, dtype=dtype) / head_width)
    angle = torch.outer(torch.arange(length, device=like.device, dtype=dtype), frequency)
    return angle.cos(), angle.sin()


def turn(x: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
    """Turn the pairs (i, i + half) of the last dimension of x [B, H, T, D/H]."""
    cos, sin = turns
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1).to(x.dtype)
