"""Text to token ids and back: bytes, or a Hugging Face ``tokenizer.json``."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UserError

CHUNK = 1 << 20
"""Bytes that the Hugging Face tokenizer gets at once, cut after a line: its memory is a hundred times its text."""

END_OF_TEXT = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "[SEP]")
"""Tokens that mark the end of a document, in the vocabularies that have one."""


class Tokenizer(Protocol):
    """`vocab` is the largest id plus one, `end` the ids written after each document, `digest` names the mapping."""

    vocab: int
    end: tuple[int, ...]
    digest: str

    def pieces(self, document: bytes) -> Iterator[NDArray[Any]]:
        """The ids of a document, in pieces."""
        ...

    def encode(self, text: str) -> list[int]: ...
    def decode(self, tokens: Sequence[int]) -> str: ...


class Bytes:
    """Every byte is a token. A document ends with byte 0, which text does not contain."""

    vocab = 256
    end: tuple[int, ...] = (0,)
    digest = "bytes"

    def pieces(self, document: bytes) -> Iterator[NDArray[Any]]:
        yield np.frombuffer(document, np.uint8)

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, tokens: Sequence[int]) -> str:
        return bytes(tokens).decode(errors="replace")


class HuggingFace:
    """A ``tokenizer.json``, read by the `tokenizers` library. Bytes that are not UTF-8 become U+FFFD."""

    def __init__(self, path: Path) -> None:
        try:
            import tokenizers
        except ImportError as error:
            raise UserError(
                "a tokenizer file needs the tokenizers library",
                key="data.tokenizer",
                value=str(path),
                mend="pip install 'shoal[hf]', or write tokenizer = \"bytes\"",
            ) from error
        try:
            content = path.read_bytes()
            self._inner = tokenizers.Tokenizer.from_buffer(content)
        except OSError as error:
            raise UserError(
                "cannot be read",
                key="data.tokenizer",
                value=str(path),
                mend='write "bytes" or the path of a tokenizer.json',
            ) from error
        except Exception as error:  # the library raises Exception itself
            raise UserError(f"not a tokenizer.json ({error})", key="data.tokenizer", value=str(path)) from error
        self._inner.no_truncation()
        self._inner.no_padding()
        ids = self._inner.get_vocab(with_added_tokens=True)
        self.vocab = max(ids.values()) + 1
        self.end = next(((ids[token],) for token in END_OF_TEXT if token in ids), ())
        self.digest = hashlib.sha256(content).hexdigest()[:16]

    def pieces(self, document: bytes) -> Iterator[NDArray[Any]]:
        for start, stop in _lines(document, CHUNK):
            yield np.array(self.encode(document[start:stop].decode(errors="replace")), np.uint32)

    def encode(self, text: str) -> list[int]:
        return self._inner.encode(text, add_special_tokens=False).ids

    def decode(self, tokens: Sequence[int]) -> str:
        return self._inner.decode(list(tokens), skip_special_tokens=False)


def load_tokenizer(name: str, base: Path) -> Tokenizer:
    """``"bytes"``, or the path of a ``tokenizer.json`` relative to `base`.

    Raises:
        UserError: the file cannot be read, or the library is not installed.
    """
    return Bytes() if name == "bytes" else HuggingFace(base / name)


def _lines(document: bytes, size: int) -> Iterator[tuple[int, int]]:
    """Cut into pieces of about `size` bytes, after a line end where there is one."""
    start = 0
    while start < len(document):
        stop = min(start + size, len(document))
        if stop < len(document):
            stop = document.rfind(b"\n", start, stop) + 1 or stop
        yield start, stop
        start = stop
