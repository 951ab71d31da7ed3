from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from cli.conftest import shoal, tiny_job
from lab.hosts import make
from shoal import lab as labs
from shoal.errors import ShoalError
from shoal.lab import Lab

__all__ = ["own_labs", "shoal", "tiny_job", "two"]


@cache
def reason() -> str | None:
    """Why there can be no lab here; None if there can."""
    if sys.platform != "linux":
        return "a lab needs Linux"
    try:
        with labs.up(make()):
            return None
    except ShoalError as error:
        return f"no lab here: {error}"


@pytest.fixture
def own_labs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A place for labs that nobody else sees; a lab that a test leaves is taken down."""
    if why := reason():
        pytest.skip(why)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    yield
    for found in labs.running():
        found.down()


@pytest.fixture
def two(own_labs: None) -> Iterator[Lab]:
    """Two hosts, 5 ms and 100 Mbit/s apart."""
    with labs.up(make()) as lab:
        yield lab
