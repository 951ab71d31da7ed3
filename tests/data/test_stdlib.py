"""The default corpus."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal import data
from shoal.data import stdlib
from shoal.errors import UserError


def test_only_the_library_itself_belongs(tmp_path: Path) -> None:
    names = [
        "zlib_user.py",
        "asyncio/base.py",
        "asyncio/__pycache__/base.py",
        "site-packages/torch/nn.py",
        "dist-packages/x.py",
        "test/test_x.py",
        "unittest/test/test_y.py",
        "idlelib/idle_test/z.py",
        "encodings/cp037.py",
        "pydoc_data/topics.py",
        "_sysconfigdata__linux_x86_64-linux-gnu.py",
        "abc.py",
        "LICENSE.txt",
    ]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    found = [path.relative_to(tmp_path).as_posix() for path in stdlib.sources(tmp_path)]
    assert found == ["abc.py", "asyncio/base.py", "zlib_user.py"]


def test_a_python_without_sources_is_explained(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no Python source in .*source = \"files\""):
        stdlib.sources(tmp_path)


def test_the_corpus_of_this_python() -> None:
    """About ten megabytes, on which a model that looks at one byte reaches about 2.4 nats."""
    corpus = data.load(
        source="stdlib", files=[], tokenizer="bytes", sequence=64, held_out=0.05, args={}, base=Path("/nowhere")
    )
    held, train = len(corpus.held_out), len(corpus.train)
    assert 6e6 < (train + held) * 64 < 16e6
    assert 0.045 < held / (train + held) < 0.055
    found = corpus.baselines()
    assert 2.9 < found["unigram"] < 3.5
    assert 2.2 < found["bigram"] < 2.6
    assert corpus.baselines() is found, "counted once"
