"""The default corpus: the source code of the Python standard library that runs Shoal.

About 10 MB of text that every machine with Python already has. Left out are tests (17 MB, half the library),
installed packages, and what is data rather than code: ``encodings`` (character tables), ``pydoc_data`` (help texts) and
``_sysconfigdata*`` (build settings, different on each machine). Machines with the same Python version have the same
corpus; others find out by its digest.
"""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path

from shoal.errors import UserError

LEFT_OUT = frozenset(
    {"site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test", "encodings", "pydoc_data"}
)
"""Folders of the library that are not part of the corpus, at any depth."""


def sources(root: Path | None = None) -> list[Path]:
    """The files of the corpus, sorted by their place below `root` (the running Python's library).

    Raises:
        UserError: this Python comes without the source of its library.
    """
    root = root or Path(sysconfig.get_path("stdlib")).resolve()
    found: list[Path] = []
    for folder, below, names in os.walk(root):
        below[:] = [
            name for name in below if name not in LEFT_OUT
        ]  # installed packages can be a hundred times the library
        found += [
            Path(folder, name) for name in names if name.endswith(".py") and not name.startswith("_sysconfigdata")
        ]
    if not found:
        raise UserError(
            f"no Python source in {root}",
            key="data.source",
            value="stdlib",
            mend='write source = "files" and files = […]',
        )
    return sorted(found)
