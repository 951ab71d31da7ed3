"""Tokenizers: bytes, and a tokenizer.json."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from shoal.data import tokenizer
from shoal.data.text import load_text
from shoal.data.tokenizer import Bytes, HuggingFace, load_tokenizer
from shoal.errors import UserError

tokenizers = pytest.importorskip("tokenizers")

TEXT = "the quick brown fish swims over the lazy shoal; ".join(f"{n}\n" for n in range(60))


@pytest.fixture
def tokenizer_file(tmp_path: Path) -> Path:
    """A byte-level BPE of 300 tokens with an end-of-text."""
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        [TEXT],
        tokenizers.trainers.BpeTrainer(
            vocab_size=300, special_tokens=["<|endoftext|>"], initial_alphabet=alphabet, show_progress=False
        ),
    )
    made.enable_truncation(4)
    made.save(str(tmp_path / "tokenizer.json"))
    return tmp_path / "tokenizer.json"


def test_a_tokenizer_file_round_trips_text(tokenizer_file: Path) -> None:
    found = load_tokenizer("tokenizer.json", tokenizer_file.parent)
    ids = found.encode(TEXT)
    assert found.decode(ids) == TEXT
    assert len(ids) < len(TEXT) / 2, "the file's own truncation is off, and merges are used"
    assert max(ids) < found.vocab == 300
    assert found.decode(found.end) == "<|endoftext|>"


def test_a_corpus_of_wide_tokens(tokenizer_file: Path, tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    found = HuggingFace(tokenizer_file)
    corpus = load_text([path], tokenizer=found, sequence=8, held_out=0.0)
    assert corpus.rows.train.dtype == np.uint16
    assert corpus.rows.train.tolist() == [*found.encode(TEXT), *found.end]
    assert corpus.vocab == 300
    inputs, _ = corpus.train.batch([0])
    assert TEXT.startswith(corpus.decode(inputs[0].tolist()))


def test_long_documents_are_cut_after_lines(tokenizer_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer, "CHUNK", 200)
    found = HuggingFace(tokenizer_file)
    pieces = [found.decode(piece.tolist()) for piece in found.pieces(TEXT.encode())]
    assert len(pieces) > 5
    assert "".join(pieces) == TEXT
    assert all(piece.endswith("\n") for piece in pieces)
    unbroken = [found.decode(piece.tolist()) for piece in found.pieces(b"x" * 450)]
    assert [len(piece) for piece in unbroken] == [200, 200, 50]


def test_bytes_that_are_not_text_are_replaced(tokenizer_file: Path) -> None:
    found = HuggingFace(tokenizer_file)
    assert "".join(found.decode(p.tolist()) for p in found.pieces(b"ok \xff\xfe ok")) == "ok \ufffd\ufffd ok"


def test_different_files_have_different_digests(tokenizer_file: Path) -> None:
    first = HuggingFace(tokenizer_file).digest
    tokenizer_file.write_text(tokenizer_file.read_text().replace("endoftext", "endoftexts"))
    second = HuggingFace(tokenizer_file)
    assert len({first, second.digest, Bytes.digest}) == 3
    assert second.end == (), "without an end-of-text in its vocabulary, documents are not ended"


def test_a_missing_library_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(UserError, match=r"data.tokenizer: .*pip install 'shoal\[hf\]'"):
        load_tokenizer("tokenizer.json", tmp_path)
    assert load_tokenizer("bytes", tmp_path).vocab == 256


def test_a_file_that_is_no_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"data.tokenizer: cannot be read, got '.*none.json'"):
        load_tokenizer("none.json", tmp_path)
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(UserError, match=r"data.tokenizer: not a tokenizer.json .*other.json"):
        load_tokenizer("other.json", tmp_path)
