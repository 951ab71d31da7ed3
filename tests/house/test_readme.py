"""Every command of the README does what a newcomer would expect of it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = [line.strip() for line in re.findall(r"^    (\S.*)$", README, re.MULTILINE)]
ELSEWHERE = {
    "make test": "this very run",
    "make train": "a longer run of the example; tests run its job for fewer steps",
    ".venv/bin/shoal train examples/first-light/job.toml --world lab --steps 20": "tests/lab runs one",
    ".venv/bin/shoal doctor": "ends with 1 where something is wrong; tests/cli runs it",
}
SHOAL = [c for c in COMMANDS if c.startswith(".venv/bin/shoal ") and c not in ELSEWHERE]


def test_every_indented_line_is_known() -> None:
    """A command that is added to the README is executed by a test, or named here with the reason."""
    toml = {"[model]", 'factory = "my_module:make_model"', "args = { width = 64 }", 'loss = "my_module:loss"'}
    torchrun = [c for c in COMMANDS if c.startswith("torchrun")]  # tests/cli runs it with one machine
    assert set(COMMANDS) == {*SHOAL, *ELSEWHERE, *toml, *torchrun}
    assert len(torchrun) == 1


@pytest.fixture(scope="module")
def newcomer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what the README's commands touch, so that they leave nothing in the checkout."""
    folder = tmp_path_factory.mktemp("checkout")
    shutil.copytree(ROOT / "examples", folder / "examples")
    (folder / ".venv" / "bin").mkdir(parents=True)
    shoal = folder / ".venv" / "bin" / "shoal"
    shoal.write_text(f'#!/bin/sh\nexec {sys.executable} -m shoal "$@"\n')
    shoal.chmod(0o755)
    return folder


@pytest.mark.parametrize("command", SHOAL)
def test_command(newcomer: Path, command: str) -> None:
    environment = {key: value for key, value in os.environ.items() if key not in {"RANK", "WORLD_SIZE"}}
    done = subprocess.run(
        command.split(), cwd=newcomer, env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_make_train_and_ci_run_what_the_readme_says() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert "shoal train examples/first-light/job.toml" in makefile
    assert "make test" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    for command in (command for command in ELSEWHERE if command.startswith("make ")):
        assert re.search(rf"^{command.split()[1]}:", makefile, re.MULTILINE)
