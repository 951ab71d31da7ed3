from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from shoal.cli.main import main


@dataclass(frozen=True, slots=True)
class Ran:
    status: int
    out: str
    err: str


@pytest.fixture
def shoal(capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """Run the command line in this process: ``shoal("list", "topology").out``."""

    def run(*arguments: object) -> Ran:
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        text = capsys.readouterr()
        status = ended.value.code
        return Ran(status if isinstance(status, int) else 0 if status is None else 1, text.out, text.err)

    return run


@pytest.fixture
def tiny_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A job that takes no time, in a folder that is the current one."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("the quick brown fox jumps over the lazy dog, and the dog does not mind. " * 60)
    (tmp_path / "job.toml").write_text(
        """
        name = "tiny"
        [model]
        args = { width = 8, layers = 1, heads = 1 }
        [data]
        source = "files"
        files = ["text.txt"]
        sequence = 16
        held_out = 0.2
        [batch]
        size = 4
        micro = 2
        [run]
        steps = 6
        threads = 1
        log_every = 2
        eval_batches = 1
        checkpoint_every = 3
        sample = 8
        """
    )
    return Path("job.toml")
