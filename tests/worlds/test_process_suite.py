"""The world suite on real processes, over each transport."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from shoal.world import Peer
from worlds.processes import Crowd
from worlds.suite import SEED, Program, WorldSuite


class _Processes(WorldSuite):
    transport: ClassVar[str]

    @pytest.fixture(autouse=True)
    def _use(self, crowd: Crowd) -> None:
        self.crowd = crowd

    def launch(self, program: Program, n: int, *, keep_going: bool = False) -> dict[Peer, Any]:
        names = [f"p{number:04d}" for number in range(n)]
        endings = self.crowd.run(program, names, seed=SEED, transport=self.transport)
        assert sorted(endings) == names
        if not keep_going:
            first = next((ending.error for ending in endings.values() if ending.error is not None), None)
            if first is not None:
                raise first
        return {peer: ending.value if ending.error is None else ending.error for peer, ending in endings.items()}


class TestStreams(_Processes):
    transport = "streams"


class TestTorchDistributed(_Processes):
    transport = "torch-distributed"
