"""A corpus of text files: tokens in one long row, cut into windows, with whole documents held out."""

from __future__ import annotations

import glob
import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shoal.data import tokens
from shoal.data.baselines import entropies
from shoal.data.corpus import Corpus
from shoal.data.tokenizer import Tokenizer
from shoal.errors import UserError

FORMAT = 1
"""Raised when the same files would give other tokens or another held-out part than before: old caches are not used."""


@dataclass(frozen=True, slots=True)
class Windows:
    """A dataset of windows over a row of tokens: sample i predicts tokens i·sequence + 1 … (i + 1)·sequence.

    Every token but the first is the target of one sample. The last few, which do not fill a window, are left out.
    """

    tokens: NDArray[Any]
    sequence: int

    def __len__(self) -> int:
        return max(0, (len(self.tokens) - 1) // self.sequence)

    def batch(self, samples: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Inputs and targets, both int64 [len(samples), sequence].

        Raises:
            IndexError: a sample is not in 0 … len-1.
        """
        ids = np.asarray(samples, np.int64)
        if len(ids) and (ids.min() < 0 or ids.max() >= len(self)):
            raise IndexError(f"samples {ids.min()} … {ids.max()} of a dataset of {len(self)}")
        at = ids[:, None] * self.sequence + np.arange(self.sequence + 1)
        windows = torch.from_numpy(self.tokens[at].astype(np.int64))
        return windows[:, :-1], windows[:, 1:]


class TextCorpus(Corpus):
    """Text files as windows of `sequence` tokens; see `load_text`. `rows` is the tokens themselves."""

    def __init__(self, found: tokens.Tokens, *, tokenizer: Tokenizer, sequence: int) -> None:
        self.rows = found
        self.train = Windows(found.train, sequence)
        self.held_out = Windows(found.held_out, sequence)
        self.tokens_per_sample = sequence
        self.vocab = tokenizer.vocab
        self._tokenizer = tokenizer

    def encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text)

    def decode(self, tokens: Sequence[int]) -> str:
        return self._tokenizer.decode(tokens)

    def baselines(self) -> Mapping[str, float]:
        """Entropies of the training tokens in nats per token; see `shoal.data.baselines`. Counted once, when asked."""
        return self._baselines

    @cached_property
    def _baselines(self) -> Mapping[str, float]:
        return entropies(self.rows.train, self._tokenizer.vocab)

    def digest(self) -> str:
        """Depends on all tokens, training and held-out, on the tokenizer and on the windows; not on paths or times."""
        parts = (self.rows.digest, len(self.rows.train), self._tokenizer.digest, self.tokens_per_sample)
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def load_text(files: Sequence[Path], *, tokenizer: Tokenizer, sequence: int, held_out: float) -> TextCorpus:
    """The corpus of `files`, each one document. Tokens are read from the cache, or written there first.

    Documents follow each other in the order of `files`, each ended by the tokenizer's end-of-text. Files of equal
    content are one document. About the share `held_out` of the bytes is held out: whole documents, chosen by a digest
    of their content, or the end of the largest document where whole ones are too large. Training and held-out tokens
    are separate rows, so no window reaches from one into the other.

    Args:
        held_out: share of the text in [0, 1); 0 holds out nothing.

    Raises:
        UserError: there is too little text for one window, or a file cannot be read.
    """
    try:
        path = tokens.cache_folder() / f"{tokens.key_of(files, FORMAT, tokenizer.digest, float(held_out))}.tokens"
        found = tokens.read(path)
        if found is None:
            train, held = _hold_out(_documents(files), held_out)
            tokens.write(path, _contents(train), _contents(held), tokenizer)
            found = tokens.read(path)
            assert found is not None, f"{path} was just written"
    except OSError as error:
        raise UserError(
            f"cannot be read or cached: {error.strerror}", key="data.files", value=str(error.filename)
        ) from error
    corpus = TextCorpus(found, tokenizer=tokenizer, sequence=sequence)
    _check_sizes(corpus, held_out)
    return corpus


def find_files(patterns: Sequence[str], base: Path) -> list[Path]:
    """The files that `patterns` name, relative to `base`; ``**`` matches any folders.

    Patterns are taken in their order, the files of each are sorted, and a file that two patterns match comes once.

    Raises:
        UserError: no patterns, or one that matches no file.
    """
    if not patterns:
        raise UserError("no files are named", key="data.files", mend='write e.g. files = ["texts/**/*.txt"]')
    found: dict[Path, None] = {}
    for pattern in patterns:
        names = glob.glob(os.path.expanduser(pattern), root_dir=base, recursive=True)
        paths = [path for path in sorted(base / name for name in names) if path.is_file()]
        if not paths:
            folder = (base / pattern).is_dir()
            mend = (
                f'write "{pattern.rstrip("/")}/**/*" for all files below it'
                if folder
                else f"paths are relative to {base}"
            )
            raise UserError(
                "this is a folder" if folder else "no file matches", key="data.files", value=pattern, mend=mend
            )
        found.update((path.resolve(), None) for path in paths)
    return list(found)


@dataclass(frozen=True, slots=True)
class _Part:
    """Bytes `start` … `stop` of a file; `digest` is of the whole file."""

    path: Path
    start: int
    stop: int
    digest: str

    @property
    def size(self) -> int:
        return self.stop - self.start


def _documents(files: Iterable[Path]) -> list[_Part]:
    """Every file as a whole, without those that have the content of an earlier one."""
    found: dict[str, _Part] = {}
    for path in files:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            found.setdefault(digest, _Part(path, 0, file.tell(), digest))
    return [part for part in found.values() if part.size]


def _hold_out(documents: Sequence[_Part], share: float) -> tuple[list[_Part], list[_Part]]:
    """Documents to train on and documents held out, in their order."""
    room = quota = round(share * sum(part.size for part in documents))
    chosen: set[str] = set()
    for part in sorted(documents, key=lambda part: part.digest):
        if part.size <= room:
            room -= part.size
            chosen.add(part.digest)
    train = [part for part in documents if part.digest not in chosen]
    held = [part for part in documents if part.digest in chosen]
    if train and room > quota // 2:
        largest = max(train, key=lambda part: (part.size, part.digest))
        cut = _line_start(largest, largest.stop - room)
        train[train.index(largest)] = _Part(largest.path, 0, cut, largest.digest)
        held.append(_Part(largest.path, cut, largest.stop, largest.digest))
    return train, held


def _line_start(part: _Part, at: int) -> int:
    """The start of the line that byte `at` is in; `at` itself where lines are long."""
    back = max(0, at - 4096)
    with part.path.open("rb") as file:
        file.seek(back)
        before = file.read(at - back).rfind(b"\n") + 1
    return back + before if before else at


def _contents(parts: Iterable[_Part]) -> Iterator[bytes]:
    for part in parts:
        with part.path.open("rb") as file:
            file.seek(part.start)
            yield file.read(part.size)


def _check_sizes(corpus: TextCorpus, held_out: float) -> None:
    needed = corpus.tokens_per_sample + 1
    if not len(corpus.train):
        raise UserError(
            f"{len(corpus.rows.train)} training tokens do not fill one window of {needed}",
            key="data.sequence",
            value=corpus.tokens_per_sample,
            mend="give more text or write a shorter sequence",
        )
    if held_out and not len(corpus.held_out):
        raise UserError(
            f"{len(corpus.rows.held_out)} held-out tokens do not fill one window of {needed}",
            key="data.held_out",
            value=float(held_out),
            mend="write a larger share (0 holds out nothing), a shorter sequence, or give more text",
        )
