"""What ``data.source`` can say: the standard library, text files, or a callable of one's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shoal.data import stdlib, text
from shoal.data.corpus import Corpus
from shoal.data.tokenizer import load_tokenizer
from shoal.errors import UserError
from shoal.imports import call, resolve


def load(
    *,
    source: str,
    files: Sequence[str],
    tokenizer: str,
    sequence: int,
    held_out: float,
    args: Mapping[str, Any],
    base: Path,
) -> Corpus:
    """Load the corpus that a job's ``[data]`` table describes. Paths are relative to `base`, the job's folder.

    Args:
        source: ``"stdlib"``, ``"files"``, or ``package.module:callable``, which is called with `args` and returns a
            `Corpus`. It is handed those of `files`, `tokenizer`, `sequence`, `held_out` and `base` that it has a
            parameter for and `args` does not set.
        files: paths and globs, for ``"files"``.
        tokenizer: ``"bytes"`` or the path of a ``tokenizer.json``.
        sequence: tokens per window.
        held_out: share of the text that is held out.

    Raises:
        UserError: the source, a file or the tokenizer cannot be used, or there is too little text.
    """
    if source not in ("stdlib", "files"):
        given = {"files": files, "tokenizer": tokenizer, "sequence": sequence, "held_out": held_out, "base": base}
        return _own(source, args, given, base)

    if args:
        raise UserError(
            f"source {source!r} takes no arguments", key="data.args", value=dict(args), mend="leave them out"
        )
    if source == "stdlib" and files:
        raise UserError(
            'source "stdlib" takes no files', key="data.files", value=list(files), mend='write source = "files"'
        )
    paths = stdlib.sources() if source == "stdlib" else text.find_files(files, base)
    return text.load_text(paths, tokenizer=load_tokenizer(tokenizer, base), sequence=sequence, held_out=held_out)


def _own(source: str, args: Mapping[str, Any], given: Mapping[str, Any], base: Path) -> Corpus:
    """A person's own source, checked to be a corpus."""
    if ":" not in source:
        raise UserError(
            "no such source", key="data.source", value=source, mend='write "stdlib", "files" or package.module:callable'
        )
    corpus = call(resolve(source, key="data.source", base=base), args, key="data.args", context=given)
    missing = [
        name for name in ("train", "held_out", "tokens_per_sample", "vocab", "digest") if not hasattr(corpus, name)
    ]
    missing += [
        f"{part}.{name}"
        for part in ("train", "held_out")
        if part not in missing
        for name in ("__len__", "batch")
        if not hasattr(getattr(corpus, part), name)
    ]
    if getattr(corpus, "vocab", None) is not None:
        missing += [name for name in ("encode", "decode") if not hasattr(corpus, name)]
    if not hasattr(corpus, "baselines"):
        missing.append("baselines")
    if missing:
        raise UserError(
            f"it returned a {type(corpus).__name__} without {', '.join(missing)}",
            key="data.source",
            value=source,
            mend="return a shoal.data.Corpus",
        )
    return corpus
