"""Real processes are started once for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from worlds.processes import Crowd


@pytest.fixture(scope="session")
def crowd() -> Iterator[Crowd]:
    crowd = Crowd()
    yield crowd
    crowd.close()
