"""Any nn.Module by the name of its factory."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from shoal import models
from shoal.errors import UserError

MODULE = """
import torch
from torch import nn

class Tiny(nn.Module):
    def __init__(self, width, vocab=7, dropout=0.0):
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.drop = nn.Dropout(dropout)
    def forward(self, x):
        return self.drop(self.embed(x)) @ self.embed.weight.T

class Nested:
    make = Tiny

def function(sequence, *, vocab): return nn.Linear(sequence, vocab)
def anything(**given): return nn.Linear(len(given), 1)
def refuses(width): raise ValueError("width must be odd")
def broken(): return undefined_name
def not_a_model(): return 3
def loss(model, batch): return torch.tensor(0.0), 1
number = 3
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A job's folder with modules of one's own, forgotten after the test."""
    (tmp_path / "my_model.py").write_text(MODULE)
    (tmp_path / "needs_more.py").write_text("import package_that_nobody_has\n")
    (tmp_path / "typo.py").write_text("def f(:\n")
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("my_model", "needs_more", "typo"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


def state(model: nn.Module) -> list[torch.Tensor]:
    return [*model.parameters(), *model.buffers()]


@pytest.mark.parametrize(
    ("factory", "args"),
    [
        ("torch.nn:Linear", {"in_features": 3, "out_features": 2}),
        ("torch.nn:LSTM", {"input_size": 3, "hidden_size": 4}),
        ("torch.nn:TransformerEncoderLayer", {"d_model": 8, "nhead": 2}),
        ("my_model:Tiny", {"width": 5}),
        ("my_model:Nested.make", {"width": 5}),
        ("shoal.models.gpt:GPT", {"width": 16, "heads": 2, "layers": 1}),
    ],
)
def test_all_peers_get_the_same_weights(folder: Path, factory: str, args: dict[str, Any]) -> None:
    """Case D5: the seed decides, whatever was drawn before."""
    one = models.build(factory, args, seed=3, base=folder)
    torch.rand(17)
    two = models.build(factory, args, seed=3, base=folder)
    other = models.build(factory, args, seed=4, base=folder)
    assert all(torch.equal(a, b) for a, b in zip(state(one), state(two), strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(state(one), state(other), strict=True))


@pytest.mark.parametrize("factory", ["my_model:Tiny", "my_model:refuses"])
def test_the_callers_random_numbers_are_untouched(folder: Path, factory: str) -> None:
    torch.manual_seed(5)
    expected = torch.rand(4)
    torch.manual_seed(5)
    try:
        models.build(factory, {"width": 5}, seed=9, base=folder)
    except UserError:
        assert factory == "my_model:refuses"
    assert torch.equal(torch.rand(4), expected)


def test_context_fills_what_the_factory_asks_for(folder: Path) -> None:
    context = {"vocab": 11, "sequence": 6, "unheard_of": 1}
    tiny: Any = models.build("my_model:Tiny", {"width": 5}, seed=0, base=folder, context=context)
    assert tiny.embed.weight.shape == (11, 5)
    tiny = models.build("my_model:Tiny", {"width": 5, "vocab": 3}, seed=0, base=folder, context=context)
    assert tiny.embed.weight.shape == (3, 5), "the job's own arguments win"
    linear: Any = models.build("my_model:function", {}, seed=0, base=folder, context=context)
    assert linear.weight.shape == (11, 6)
    linear = models.build("my_model:anything", {"a": 1}, seed=0, base=folder, context=context)
    assert linear.weight.shape == (1, 1), "**kwargs ask for nothing"


@pytest.mark.parametrize(
    ("factory", "args", "message"),
    [
        ("my_model", {}, r"model.factory: not the name of a callable.*package.module:callable"),
        ("my_model:", {}, r"model.factory: not the name of a callable"),
        (
            "my_modle:Tiny",
            {},
            r"model.factory: no module named 'my_modle', got 'my_modle:Tiny'; did you mean 'my_model'",
        ),
        ("torch.nnn:Linear", {}, r"model.factory: no module named 'torch.nnn'"),
        ("my_model:Tniy", {}, r"model.factory: my_model has no 'Tniy', got .*; did you mean 'Tiny'"),
        ("my_model:number", {}, r"model.factory: number in my_model cannot be called"),
        ("my_model:not_a_model", {}, r"model.factory: the factory returned a int.*return a torch.nn.Module"),
        ("needs_more:f", {}, r"needs_more cannot be imported.*install 'package_that_nobody_has'"),
        ("typo:f", {}, r"model.factory: typo cannot be imported: SyntaxError.*mend the module"),
        ("my_model:Tiny", {"widht": 5}, r"model.args.widht: Tiny takes no 'widht'; did you mean 'width'"),
        ("my_model:Tiny", {}, r"model.args: Tiny needs width; write model.args.width"),
        ("my_model:refuses", {"width": 2}, r"model.args: refuses refused .*width must be odd \(.*my_model.py:18\)"),
        ("shoal.models.gpt:GPT", {"width": 10, "heads": 4}, r"model.args: GPT refused .*multiple of 2 x heads = 8"),
        ("torch.nn:LazyLinear", {"out_features": 2}, r"model.factory: parameter 'weight' has no shape"),
    ],
)
def test_what_cannot_be_built_is_explained(folder: Path, factory: str, args: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        models.build(factory, args, seed=0, base=folder)


def test_a_defect_inside_a_factory_keeps_its_traceback(folder: Path) -> None:
    with pytest.raises(NameError, match="undefined_name"):
        models.build("my_model:broken", {}, seed=0, base=folder)


def test_the_jobs_folder_is_looked_at_first(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "my_model.py").write_text("raise RuntimeError('the wrong one')")
    sys.path.insert(0, str(elsewhere))
    before = list(sys.path)
    assert models.build("my_model:Tiny", {"width": 2}, seed=0, base=folder)
    assert sys.path == [*before, str(folder.resolve())], "it stays on the path, last, for later imports"


def test_a_model_can_be_built_without_memory(folder: Path) -> None:
    with torch.device("meta"):
        model = models.build("my_model:Tiny", {"width": 5}, seed=0, base=folder)
    assert all(parameter.is_meta for parameter in model.parameters())


def test_a_loss_is_found_by_name(folder: Path) -> None:
    total, weight = models.load_loss("my_model:loss", folder)(nn.Identity(), ())
    assert (float(total), weight) == (0.0, 1)
    with pytest.raises(UserError, match=r"model.loss: .* has no 'next_tokens'.*did you mean 'next_token'"):
        models.load_loss("shoal.models.losses:next_tokens", None)
