"""Test-wide habits: one intra-op thread (bits depend on the count), and tests/ on the path for shared references."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from hypothesis import settings

settings.register_profile("shoal", deadline=None)  # a busy machine is not a failure
settings.load_profile("shoal")
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)
