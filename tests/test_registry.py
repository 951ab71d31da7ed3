"""The registry: strategies are found by the names of their files, without importing them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import shoal
from shoal import registry
from shoal.errors import UserError

ROOT = Path(shoal.__file__).parent

PLAIN = '"""Answers plainly.\n\nMore."""\n\nstrategy = "plain"\n'
WITH_OPTIONS = '''"""Takes options."""

from pydantic import BaseModel, ConfigDict


class Options(BaseModel):
    model_config = ConfigDict(extra="forbid")
    depth: int = 3


strategy: type = Options
'''


@pytest.fixture
def seam(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A seam ``shoal.toys`` with two strategies, a helper and a private module; importing a third fails."""
    folder = tmp_path / "toys"
    folder.mkdir()
    files = {
        "plain_toy.py": PLAIN,
        "with_options.py": WITH_OPTIONS,
        "broken.py": '"""Cannot be imported."""\nraise RuntimeError("imported")\nstrategy = 1\n',
        "helper.py": '"""Not a strategy."""\nother = 1\n',
        "_private.py": PLAIN,
        "__init__.py": PLAIN,
    }
    for name, text in files.items():
        (folder / name).write_text(text)
    monkeypatch.setattr(registry, "__file__", str(tmp_path / "registry.py"))
    monkeypatch.setattr(shoal, "__path__", [*shoal.__path__, str(tmp_path)])
    yield "toys"
    for name in [name for name in sys.modules if name.startswith("shoal.toys")]:
        del sys.modules[name]


def test_strategies_are_found_without_importing_them(seam: str) -> None:
    assert registry.names(seam) == ["broken", "plain-toy", "with-options"]
    shown = [(entry.name, entry.summary) for entry in registry.entries(seam)]
    assert ("plain-toy", "Answers plainly.") in shown and ("broken", "Cannot be imported.") in shown
    assert f"shoal.{seam}.plain_toy" not in sys.modules


def test_a_strategy_is_loaded_by_its_name(seam: str) -> None:
    assert registry.strategy(seam, "plain-toy") == "plain"


def test_an_unknown_strategy_is_refused_with_the_nearest(seam: str) -> None:
    with pytest.raises(UserError, match=r"no such toys, got 'plian-toy'; did you mean 'plain-toy'\?"):
        registry.load(seam, "plian-toy")
    with pytest.raises(UserError, match="write one of broken, plain-toy, with-options"):
        registry.load(seam, "zzz")


def test_a_strategy_of_ones_own_is_named_by_module_and_attribute(seam: str) -> None:
    assert registry.strategy(seam, "collections:OrderedDict").__name__ == "OrderedDict"


@pytest.mark.parametrize("name", sorted(registry.SEAMS))
def test_every_seam_is_a_room_and_every_strategy_has_a_summary(name: str) -> None:
    assert (ROOT / name).is_dir()
    assert all(entry.summary for entry in registry.entries(name))


def test_listing_everything_imports_neither_torch_nor_numpy() -> None:
    code = (
        "import sys; from shoal import registry; [registry.entries(seam) for seam in registry.SEAMS];"
        "print({'torch', 'numpy'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.strip() == "set()"
