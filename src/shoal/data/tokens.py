"""Token files: tokens written once, then memory-mapped by everyone.

A file is the training tokens, then the held-out tokens, then a JSON footer, the footer's length and a magic word. It is
written aside, synced and renamed, so it is whole or absent, whoever else builds it at the same time; readers of an
older one keep it. All workers of a machine share its pages.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from shoal.data.tokenizer import Tokenizer

MAGIC = b"shoaltok"


@dataclass(frozen=True, slots=True, kw_only=True)
class Footer:
    """What a token file says about itself. `digest` is of the tokens: it does not depend on paths or times."""

    dtype: str
    train: int
    held_out: int
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """Memory-mapped tokens, read only."""

    train: NDArray[Any]
    held_out: NDArray[Any]
    digest: str


def cache_folder() -> Path:
    """``$XDG_CACHE_HOME/shoal``, or ``~/.cache/shoal``. Everything in it may be deleted at any time."""
    home = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(home) if home else Path.home() / ".cache") / "shoal"


def read(path: Path) -> Tokens | None:
    """Map a token file; None if there is none, or it was cut short."""
    try:
        with path.open("rb") as file:
            footer = _read_footer(file)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if footer is None:
        return None
    total = footer.train + footer.held_out
    flat = np.memmap(path, footer.dtype, "r", shape=(total,)) if total else np.empty(0, footer.dtype)
    return Tokens(train=flat[: footer.train], held_out=flat[footer.train :], digest=footer.digest)


def write(path: Path, train: Iterable[bytes], held_out: Iterable[bytes], tokenizer: Tokenizer) -> None:
    """Tokenize documents into a token file at `path`. Only one document and its tokens are in memory at a time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, aside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            _write_all(file, train, held_out, tokenizer)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    except BaseException:
        Path(aside).unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def dtype_for(vocab: int) -> np.dtype[Any]:
    """The smallest unsigned type that holds ids below `vocab`."""
    return np.dtype("u1" if vocab <= 1 << 8 else "<u2" if vocab <= 1 << 16 else "<u4")


def _write_all(file: BinaryIO, train: Iterable[bytes], held_out: Iterable[bytes], tokenizer: Tokenizer) -> None:
    dtype, digest, counts = dtype_for(tokenizer.vocab), hashlib.sha256(), []
    for documents in (train, held_out):
        count = 0
        for document in documents:
            for piece in (*tokenizer.pieces(document), np.array(tokenizer.end, dtype)):
                data = piece.astype(dtype, copy=False).tobytes()
                file.write(data)
                digest.update(data)
                count += len(piece)
        counts.append(count)
    footer = Footer(dtype=dtype.str, train=counts[0], held_out=counts[1], digest=digest.hexdigest()[:16])
    text = json.dumps(asdict(footer)).encode()
    file.write(text + struct.pack("<Q", len(text)) + MAGIC)


def _read_footer(file: BinaryIO) -> Footer | None:
    size = file.seek(0, os.SEEK_END)
    tail = 8 + len(MAGIC)
    if size < tail:
        return None
    file.seek(size - tail)
    (length,) = struct.unpack("<Q", file.read(8))
    if file.read() != MAGIC or length > size - tail:
        return None
    file.seek(size - tail - length)
    footer = Footer(**json.loads(file.read(length)))
    whole = (footer.train + footer.held_out) * np.dtype(footer.dtype).itemsize + length + tail
    return footer if whole == size else None


def _sync_folder(folder: Path) -> None:
    """Make a rename in `folder` survive a power loss, where the system can."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def key_of(files: Sequence[Path], *parts: object) -> str:
    """The name under which tokens of `files` are kept; it depends on their paths, sizes and times, and on `parts`."""
    h = hashlib.sha256(repr(parts).encode())
    for file in files:
        stat = file.stat()
        h.update(f"\0{file}\0{stat.st_size}\0{stat.st_mtime_ns}".encode())
    return h.hexdigest()[:24]
