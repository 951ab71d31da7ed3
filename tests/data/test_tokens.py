"""Token files are whole or absent, whoever builds them and whatever happens meanwhile."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from shoal.data import tokens
from shoal.data.tokenizer import Bytes

BUILD = """
import sys
from pathlib import Path
from shoal.data.text import find_files, load_text
from shoal.data.tokenizer import Bytes
files = find_files(["*.txt"], Path(sys.argv[1]))
print("ready", flush=True)
sys.stdin.readline()
corpus = load_text(files, tokenizer=Bytes(), sequence=16, held_out=0.2)
print(corpus.digest(), len(corpus.train), len(corpus.held_out), bytes(corpus.rows.train[:20]).hex())
"""


class Failing(Bytes):
    """A tokenizer that fails in the second document."""

    def pieces(self, document: bytes) -> Iterator[NDArray[Any]]:
        yield from super().pieces(document)
        if document == b"two":
            raise KeyboardInterrupt


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "x.tokens"
    tokens.write(path, [b"one", b"two"], [b"three"], Bytes())
    found = tokens.read(path)
    assert found is not None
    assert bytes(found.train) == b"one\0two\0"
    assert bytes(found.held_out) == b"three\0"


def test_no_documents_make_an_empty_file(tmp_path: Path) -> None:
    tokens.write(tmp_path / "x.tokens", [], [], Bytes())
    found = tokens.read(tmp_path / "x.tokens")
    assert found is not None
    assert len(found.train) == len(found.held_out) == 0


def test_a_file_cut_short_anywhere_counts_as_absent(tmp_path: Path) -> None:
    path = tmp_path / "x.tokens"
    tokens.write(path, [b"one", b"two"], [b"three"], Bytes())
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        assert tokens.read(path) is None
    path.write_bytes(whole[1:])
    assert tokens.read(path) is None, "a file cut at its start has the footer of a longer one"
    assert tokens.read(tmp_path / "none.tokens") is None


def test_a_failed_build_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        tokens.write(tmp_path / "x.tokens", [b"one", b"two"], [], Failing())
    assert list(tmp_path.iterdir()) == []


def test_a_rebuild_replaces_the_file_and_leaves_readers_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "x.tokens"
    tokens.write(path, [b"old"], [], Bytes())
    old = tokens.read(path)
    tokens.write(path, [b"brand new"], [], Bytes())
    new = tokens.read(path)
    assert old is not None
    assert new is not None
    assert bytes(old.train) == b"old\0"
    assert bytes(new.train) == b"brand new\0"
    assert old.digest != new.digest


def test_two_processes_building_at_once_both_end_with_a_whole_file(tmp_path: Path, cache: Path) -> None:
    for n in range(50):
        (tmp_path / f"{n}.txt").write_text(f"document {n}\n" * (100 + n))
    command = [sys.executable, "-c", BUILD, str(tmp_path)]
    builders = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    try:
        for builder in builders:
            assert builder.stdout is not None
            assert builder.stdout.readline() == "ready\n"
        for builder in builders:
            assert builder.stdin is not None
            builder.stdin.write("go\n")
            builder.stdin.flush()
        said = [builder.communicate(timeout=60)[0] for builder in builders]
    finally:
        for builder in builders:
            builder.kill()
            builder.wait()
    assert [builder.returncode for builder in builders] == [0, 0]
    assert said[0] == said[1] != ""
    (path,) = cache.iterdir()
    assert tokens.read(path) is not None


@pytest.mark.parametrize(("vocab", "name"), [(2, "u1"), (256, "u1"), (257, "u2"), (65536, "u2"), (65537, "u4")])
def test_ids_take_the_fewest_bytes(vocab: int, name: str) -> None:
    assert tokens.dtype_for(vocab) == np.dtype(name)


def test_the_cache_is_where_the_system_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert tokens.cache_folder() == tmp_path / "shoal"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert tokens.cache_folder() == tmp_path / ".cache" / "shoal"


def test_the_key_depends_on_files_and_settings(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_text("text")
    two.write_text("text")
    keys = [tokens.key_of([one], 1), tokens.key_of([two], 1), tokens.key_of([one], 2), tokens.key_of([one, two], 1)]
    assert len(set(keys)) == 4
    assert tokens.key_of([one], 1) == keys[0]
    one.write_text("longer text")
    assert tokens.key_of([one], 1) != keys[0]
