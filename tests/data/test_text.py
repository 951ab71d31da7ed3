"""Text corpora: windows, documents, held-out text and what can be wrong with files."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.data.text import TextCorpus, Windows, find_files, load_text
from shoal.data.tokenizer import Bytes
from shoal.errors import UserError


def corpus_of(files: list[Path], *, sequence: int = 8, held_out: float = 0.0) -> TextCorpus:
    return load_text(files, tokenizer=Bytes(), sequence=sequence, held_out=held_out)


def write(folder: Path, **contents: str | bytes) -> list[Path]:
    """Files of these contents, in the order given."""
    paths = []
    for name, content in contents.items():
        path = folder / f"{name}.txt"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        paths.append(path)
    return paths


def many(folder: Path, count: int = 40) -> list[Path]:
    """Documents of distinct content and unequal length."""
    return write(folder, **{f"f{n:02}": f"{n}:" + "abcdefgh" * (n % 7 + 3) + f":{n}\n" for n in range(count)})


@settings(deadline=None)
@given(length=st.integers(0, 200), sequence=st.integers(1, 20))
def test_every_token_but_the_first_is_a_target_once(length: int, sequence: int) -> None:
    windows = Windows(np.arange(length, dtype=np.uint16), sequence)
    inputs, targets = windows.batch(range(len(windows)))
    assert inputs.shape == targets.shape == (len(windows), sequence)
    assert targets.flatten().tolist() == list(range(1, len(windows) * sequence + 1))
    assert (inputs == targets - 1).all()
    assert length - 1 - len(windows) * sequence < sequence


def test_batch_takes_samples_in_the_order_asked() -> None:
    windows = Windows(np.arange(100, dtype=np.uint8), 10)
    inputs, targets = windows.batch([3, 0, 3])
    assert inputs[:, 0].tolist() == [30, 0, 30]
    assert targets[:, -1].tolist() == [40, 10, 40]
    assert inputs.dtype == targets.dtype
    assert str(inputs.dtype) == "torch.int64"
    assert windows.batch([])[0].shape == (0, 10)


@pytest.mark.parametrize("sample", [-1, 9, 10**9])
def test_samples_that_do_not_exist_are_refused(sample: int) -> None:
    with pytest.raises(IndexError, match="dataset of 9"):
        Windows(np.arange(100, dtype=np.uint8), 10).batch([0, sample])


def test_documents_follow_in_order_and_are_ended(tmp_path: Path) -> None:
    corpus = corpus_of(write(tmp_path, b="second", a="first"), sequence=2)
    assert bytes(corpus.rows.train) == b"second\0first\0"


def test_any_bytes_are_a_text(tmp_path: Path) -> None:
    junk = np.random.default_rng(0).bytes(1000)
    corpus = corpus_of(write(tmp_path, junk=junk))
    assert bytes(corpus.rows.train) == junk + b"\0"
    assert isinstance(corpus.decode(list(junk)), str)


def test_text_survives_encode_and_decode(tmp_path: Path) -> None:
    corpus = corpus_of(many(tmp_path))
    assert corpus.decode(corpus.encode("naïve\t→ 🐟\n")) == "naïve\t→ 🐟\n"
    assert corpus.vocab == 256
    assert corpus.tokens_per_sample == 8


def test_files_of_equal_content_are_one_document(tmp_path: Path) -> None:
    """A copy on the other side of the split would put held-out text into training."""
    corpus = corpus_of(write(tmp_path, a="same text here", b="other", c="same text here", d=""), sequence=2)
    assert bytes(corpus.rows.train) == b"same text here\0other\0"


@pytest.mark.parametrize("share", [0.05, 0.1, 0.3, 0.5])
def test_whole_documents_are_held_out(tmp_path: Path, share: float) -> None:
    paths = many(tmp_path)
    corpus = corpus_of(paths, held_out=share)
    train = bytes(corpus.rows.train).split(b"\0")[:-1]
    held = bytes(corpus.rows.held_out).split(b"\0")[:-1]
    assert sorted(train + held) == sorted(path.read_bytes() for path in paths)
    assert not set(train) & set(held)
    total = sum(path.stat().st_size for path in paths)
    assert abs(sum(map(len, held)) / total - share) < 0.03


def test_held_out_does_not_depend_on_names_or_order(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    paths = many(tmp_path)
    moved = [tmp_path / "elsewhere" / f"{len(paths) - n}" for n in range(len(paths))]
    for old, new in zip(paths, moved, strict=True):
        new.write_bytes(old.read_bytes())
    one, two = corpus_of(paths, held_out=0.2), corpus_of(moved[::-1], held_out=0.2)
    assert set(bytes(one.rows.held_out).split(b"\0")) == set(bytes(two.rows.held_out).split(b"\0"))


def test_of_a_single_file_the_end_is_held_out(tmp_path: Path) -> None:
    lines = [f"line {n} of the only file\n" for n in range(200)]
    corpus = corpus_of(write(tmp_path, only="".join(lines)), held_out=0.1)
    train, held = bytes(corpus.rows.train)[:-1].decode(), bytes(corpus.rows.held_out)[:-1].decode()
    assert train + held == "".join(lines)
    assert train.endswith("\n")
    assert abs(len(held) / len(train + held) - 0.1) < 0.02


def test_a_file_without_lines_is_cut_anyway(tmp_path: Path) -> None:
    corpus = corpus_of(write(tmp_path, only="x" * 10_000), held_out=0.25)
    assert len(corpus.rows.held_out) == 2500 + 1
    assert len(corpus.rows.train) == 7500 + 1


def test_nothing_is_held_out_on_request(tmp_path: Path) -> None:
    corpus = corpus_of(many(tmp_path), held_out=0)
    assert len(corpus.held_out) == 0
    assert corpus.held_out.batch([])[0].shape == (0, 8)


def test_tokens_are_mapped_and_not_copied(tmp_path: Path) -> None:
    corpus = corpus_of(many(tmp_path), held_out=0.1)
    for row in (corpus.rows.train, corpus.rows.held_out):
        assert isinstance(row, np.memmap)
        assert not row.flags.writeable
        assert row.dtype == np.uint8


def test_the_digest_depends_on_content_and_windows_alone(tmp_path: Path) -> None:
    (tmp_path / "copy").mkdir()
    paths = write(tmp_path, a="some text " * 20, b="more text " * 20)
    copies = write(tmp_path / "copy", a="some text " * 20, b="more text " * 20)
    changed = write(tmp_path, c="some text " * 20, d="more texT " * 20)
    digest = corpus_of(paths).digest()
    assert corpus_of(copies).digest() == digest
    others = {
        corpus_of(changed).digest(),
        corpus_of(paths[::-1]).digest(),
        corpus_of(paths, sequence=9).digest(),
        corpus_of(paths, held_out=0.5).digest(),
    }
    assert len(others | {digest}) == 5


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    (path,) = write(tmp_path, a="before " * 10)
    before = corpus_of([path])
    path.write_text("after: " * 10)
    os.utime(path, ns=(0, 1))
    assert bytes(corpus_of([path]).rows.train).startswith(b"after")
    assert bytes(before.rows.train).startswith(b"before"), "who has the old tokens open keeps them"


def test_globs_are_recursive_sorted_and_without_repetition(tmp_path: Path) -> None:
    for name in ("b/y.txt", "b/deep/er/x.txt", "a.txt", "c.md", "d.txt.bak"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    found = find_files(["**/*.txt", "a.txt", str(tmp_path / "c.md"), "b/../a.txt"], tmp_path)
    root = tmp_path.resolve()
    assert [str(path.relative_to(root)) for path in found] == ["a.txt", "b/deep/er/x.txt", "b/y.txt", "c.md"]


def test_a_pattern_without_a_file_is_named(tmp_path: Path) -> None:
    write(tmp_path, a="text")
    with pytest.raises(UserError, match=r"data.files: no file matches, got '\*\.py'.*relative to"):
        find_files(["*.txt", "*.py"], tmp_path)
    (tmp_path / "folder").mkdir()
    with pytest.raises(UserError, match=r"this is a folder, got 'folder/'; write \"folder/\*\*/\*\""):
        find_files(["folder/"], tmp_path)
    with pytest.raises(UserError, match="no files are named"):
        find_files([], tmp_path)


def test_too_little_text_for_a_window_is_explained(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"data.sequence: 6 training tokens do not fill one window of 9, got 8"):
        corpus_of(write(tmp_path, a="short"))
    with pytest.raises(UserError, match=r"data.held_out: .* held-out tokens do not fill one window of 9, got 0.01"):
        corpus_of(write(tmp_path, a="long enough to train on"), held_out=0.01)


def test_a_file_that_vanished_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"data.files: cannot be read or cached.*gone.txt"):
        corpus_of([tmp_path / "gone.txt"])
