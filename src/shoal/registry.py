"""Find a strategy by the name of its file, without importing it.

Every seam is a package whose public modules are its strategies: ``mixing/gossip.py`` is the mixing ``gossip``,
``topology/one_peer_exponential.py`` the topology ``one-peer-exponential``. The first line of the module's docstring
is what ``shoal list`` shows, read from the source so that ``--help`` and completion never import torch. A module
names what it hands out in ``strategy`` (a class or function), and may have an ``Options`` class beside it: a pydantic
model that forbids unknown keys and validates the strategy's own part of the job file.

A strategy of your own is used by writing ``package.module:name`` instead of a short name.
"""

from __future__ import annotations

import ast
import difflib
import importlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from pydantic import BaseModel, ConfigDict

from shoal.errors import UserError

SEAMS: dict[str, str] = {
    "mixing": "how a block moves from x(t) to x(t+1)",
    "topology": "who talks to whom, with what weights",
    "optim": "the local optimizer that a mixing calls",
    "transport": "how bytes really travel",
}
"""Seam → the question it answers. A seam is a package of this name under ``shoal``."""


class NoOptions(BaseModel):
    """Options of a strategy that has none: every key is refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One strategy as ``shoal list`` shows it."""

    seam: str
    name: str
    summary: str


def names(seam: str) -> list[str]:
    """The names that can be written for `seam`, sorted."""
    return sorted(_slug(path) for path in _files(seam))


def entries(seam: str) -> list[Entry]:
    """Every strategy at `seam` with the first line of its docstring, without importing any of them."""
    return [Entry(seam=seam, name=_slug(path), summary=_summary(path)) for path in _files(seam)]


def load(seam: str, name: str) -> ModuleType:
    """Import the module of strategy `name` at `seam`, or the module of a ``package.module:attribute``.

    Raises:
        UserError: no such strategy; the message offers the nearest name.
    """
    known = names(seam)
    if name in known:
        return importlib.import_module(f"shoal.{seam}.{name.replace('-', '_')}")
    if ":" in name:
        try:
            return importlib.import_module(name.partition(":")[0])
        except ImportError as error:
            raise UserError(f"cannot import this {seam} ({error})", key=seam, value=name) from error
    mend = _near(name, known) or f"write one of {', '.join(known)}"
    raise UserError(f"no such {seam}", key=f"{seam}", value=name, mend=mend)


def strategy(seam: str, name: str) -> Any:
    """The class or function that strategy `name` at `seam` hands out."""
    module = load(seam, name)
    if ":" in name and name not in names(seam):
        attribute = name.partition(":")[2]
        if not hasattr(module, attribute):
            raise UserError(
                f"no {attribute!r} in this module", key=seam, value=name, mend=_near(attribute, dir(module))
            )
        return getattr(module, attribute)
    return module.strategy


def _files(seam: str) -> tuple[Path, ...]:
    folder = Path(__file__).parent / seam
    return _scan(folder, folder.stat().st_mtime_ns)


@cache  # a thousand virtual workers ask for the same few files
def _scan(folder: Path, changed_ns: int) -> tuple[Path, ...]:
    return tuple(sorted(p for p in folder.glob("*.py") if not p.name.startswith("_") and _is_strategy(p)))


def _is_strategy(path: Path) -> bool:
    """A strategy binds the name ``strategy`` at its top level; helpers beside it do not."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        if any(isinstance(target, ast.Name) and target.id == "strategy" for target in targets):
            return True
    return False


def _near(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {near[0]!r}?" if near else ""


def _slug(path: Path) -> str:
    return path.stem.replace("_", "-")


def _summary(path: Path) -> str:
    doc = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return doc.split("\n", 1)[0].strip()
