"""Handwritten digits: a source of data that is not text, a residual CNN and an MLP; any ``nn.Module`` trains this way.

    shoal train examples/digits/job.toml

The data are the 1,797 images of 8 x 8 pixels that come with scikit-learn (``pip install scikit-learn``).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.data import Corpus
from shoal.errors import UserError


@dataclass(frozen=True, slots=True)
class Images:
    """A dataset: images [N, 1, 8, 8] in [-1, 1] and labels [N] in 0 … 9."""

    images: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, samples: Sequence[int]) -> tuple[Tensor, Tensor]:
        at = torch.as_tensor(samples, dtype=torch.int64)
        return self.images[at], self.labels[at]


class Digits(Corpus):
    """The digits corpus. A sample is one image, so there are no tokens, no vocabulary and no text."""

    def __init__(self, train: Images, held_out: Images) -> None:
        self.train, self.held_out = train, held_out
        self.tokens_per_sample = 1
        self.vocab = None

    def digest(self) -> str:
        h = hashlib.sha256()
        for part in (self.train, self.held_out):
            for tensor in part.batch(range(len(part))):
                h.update(tensor.numpy().tobytes())
        return h.hexdigest()[:16]


def corpus(held_out: float = 0.2) -> Digits:
    """The digits, with about the share `held_out` (spread evenly over the images) kept for evaluation.

    Raises:
        UserError: scikit-learn is not installed.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise UserError("the digits come with scikit-learn", mend="pip install scikit-learn") from error
    pixels, digits = load_digits(return_X_y=True)
    images = torch.tensor(pixels, dtype=torch.float32).view(-1, 1, 8, 8) / 8 - 1
    labels = torch.tensor(digits, dtype=torch.int64)
    place = torch.arange(len(labels), dtype=torch.float64)
    kept = (place * held_out).floor() != ((place + 1) * held_out).floor()
    return Digits(Images(images[~kept], labels[~kept]), Images(images[kept], labels[kept]))


class ResidualCNN(nn.Module):
    """Images [B, 1, 8, 8] → logits [B, classes]: a stem, residual blocks, the mean over all places, a linear map.

    Its batch norms have buffers (running means, a counter) that are no parameters: workers agree on those, too.
    """

    def __init__(self, channels: int = 16, blocks: int = 2, classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels), nn.ReLU())
        self.blocks = nn.Sequential(*(ResidualBlock(channels) for _ in range(blocks)))
        self.head = nn.Linear(channels, classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(images)).mean((2, 3)))


class ResidualBlock(nn.Module):
    """x + two convolutions of x (He et al. 2016), with batch norm."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.first_norm = nn.BatchNorm2d(channels)
        self.second = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.first_norm(self.first(x)))
        return F.relu(x + self.second_norm(self.second(y)))


def mlp(width: int = 64, layers: int = 2, classes: int = 10) -> nn.Module:
    """Images [B, 1, 8, 8] → logits [B, classes]. A factory may be a function as well as a class."""
    sizes = [64] + [width] * layers
    hidden = [part for a, b in pairwise(sizes) for part in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(sizes[-1], classes))
