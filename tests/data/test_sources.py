"""What ``data.source`` can say."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from shoal import data
from shoal.data.text import Windows
from shoal.errors import UserError

OWN = """
import torch

class Numbers:
    def __init__(self, count): self.count = count
    def __len__(self): return self.count
    def batch(self, samples): return (torch.tensor(samples),)

class Mine:
    tokens_per_sample = 1
    vocab = None
    def __init__(self, count, extra):
        self.train, self.held_out, self.extra = Numbers(count), Numbers(2), extra
    def baselines(self): return {}
    def digest(self): return "mine"

def make(count, sequence, held_out=0.5, base=None): return Mine(count, (sequence, held_out, base))
def half(): return type("Half", (), {"train": 3, "tokens_per_sample": 1, "vocab": 256, "digest": str})()
def nothing(): return None
"""


@pytest.fixture
def folder(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A job's folder with a module of its own name in it."""
    (tmp_path / "own_source_for_tests.py").write_text(OWN)
    return tmp_path


def load(source: str, base: Path, **given: Any) -> Any:
    table = {"files": [], "tokenizer": "bytes", "sequence": 8, "held_out": 0.0, "args": {}}
    return data.load(source=source, base=base, **{**table, **given})


def test_files_relative_to_the_job(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("some text to learn from")
    assert load("files", tmp_path, files=["*.txt"]).decode([104, 105]) == "hi"


def test_a_source_of_ones_own_gets_what_it_asks_for(folder: Path) -> None:
    corpus = load("own_source_for_tests:make", folder, args={"count": 5, "held_out": 0.25}, sequence=12)
    assert len(corpus.train) == 5
    assert corpus.extra == (12, 0.25, folder)


@pytest.mark.parametrize(
    ("source", "given", "message"),
    [
        ("stdlibb", {}, r"data.source: no such source, got 'stdlibb'; write \"stdlib\", \"files\" or"),
        ("stdlib", {"args": {"x": 1}}, r"data.args: source 'stdlib' takes no arguments"),
        ("stdlib", {"files": ["a"]}, r"data.files: source \"stdlib\" takes no files.*write source = \"files\""),
        ("files", {}, r"data.files: no files are named"),
        ("own_source_for_test:make", {}, r"data.source: no module named 'own_source_for_test'.*did you mean"),
        ("own_source_for_tests:mak", {}, r"data.source: .* has no 'mak'.*did you mean 'make'"),
        ("own_source_for_tests:make", {"args": {"counts": 5}}, r"data.args.counts: make takes no .*'count'"),
        ("own_source_for_tests:make", {}, r"data.args: make needs count"),
        ("own_source_for_tests:half", {}, r"a Half without held_out, train.__len__, train.batch, encode, decode, base"),
        ("own_source_for_tests:nothing", {}, r"a NoneType without train.*return a shoal.data.Corpus"),
    ],
)
def test_what_cannot_be_a_source_is_explained(folder: Path, source: str, given: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        load(source, folder, **given)


def test_a_corpus_without_text_says_so() -> None:
    class Bare(data.Corpus):
        tokens_per_sample = 1
        vocab = None

        def __init__(self) -> None:
            self.train = self.held_out = Windows(np.arange(9), 2)

        def digest(self) -> str:
            return ""

    assert Bare().baselines() == {}
    with pytest.raises(TypeError, match="no text"):
        Bare().encode("text")
    with pytest.raises(TypeError, match="no text"):
        Bare().decode([1])


def test_the_example_in_the_documentation_works() -> None:
    page = Path(__file__).parents[2] / "docs" / "data.md"
    (code,) = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    made: dict[str, Any] = {}
    exec(code, made)
    corpus = made["Squares"](torch.arange(5.0), torch.arange(2.0))
    inputs, targets = corpus.train.batch([3, 1])
    assert (inputs.tolist(), targets.tolist()) == ([3.0, 1.0], [9.0, 1.0])
    assert (len(corpus.held_out), corpus.baselines(), corpus.digest()) == (2, {}, "10.0")
