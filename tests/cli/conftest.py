from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

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
