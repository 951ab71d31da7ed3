"""The house stands: floors, docs, and what belongs into the repository."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def test_no_room_imports_upward() -> None:
    """The contracts of pyproject.toml; `make lint` checks the same."""
    program = Path(sys.executable).parent / "lint-imports"
    done = subprocess.run([program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_every_strategy_has_its_row_in_the_systems_table() -> None:
    """A feature without its row is not finished. Plain optimizers and transports are described in their own pages."""
    from shoal import registry

    rows = (ROOT / "docs" / "systems.md").read_text(encoding="utf-8")
    pages = "".join(
        (ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("worlds.md", "optimizers.md", "job.md")
    )
    for seam in registry.SEAMS:
        for entry in registry.entries(seam):
            assert entry.summary.endswith("."), f"{seam}/{entry.name} needs a one-line docstring"
            assert f'"{entry.name}"' in rows or entry.name in pages, f"{seam}/{entry.name} is in no page"


def test_links_between_pages_lead_somewhere() -> None:
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8")):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_faces_say_what_their_room_is_for() -> None:
    for face in (ROOT / "src" / "shoal").rglob("__init__.py"):
        assert face.read_text(encoding="utf-8").startswith('"""'), f"{face} has no docstring"
