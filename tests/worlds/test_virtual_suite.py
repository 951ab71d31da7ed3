"""The suite of all worlds on the virtual world: with and without durations, and under hostile scheduling."""

from __future__ import annotations

from typing import Any

from shoal.world import Peer
from shoal.worlds.faults import Delay, Jitter
from shoal.worlds.simulation import Simulation
from worlds.clusters import flat
from worlds.suite import SEED, Program, WorldSuite


class TestVirtualWorld(WorldSuite):
    def launch(self, program: Program, n: int, *, keep_going: bool = False) -> dict[Peer, Any]:
        simulation = Simulation(flat(n, latency=1e-4, bandwidth=1e9), seed=SEED)
        return simulation.run(program, return_exceptions=keep_going)


class TestVirtualWorldWithMessagesOfTheRing(WorldSuite):
    def launch(self, program: Program, n: int, *, keep_going: bool = False) -> dict[Peer, Any]:
        simulation = Simulation(flat(n, latency=1e-4, bandwidth=1e9), seed=SEED, expand_collectives=True)
        return simulation.run(program, return_exceptions=keep_going)


class TestVirtualWorldWithoutDurations(WorldSuite):
    def launch(self, program: Program, n: int, *, keep_going: bool = False) -> dict[Peer, Any]:
        infinite = float("inf")
        cluster = flat(n, bandwidth=infinite, flops=infinite, memory_bandwidth=infinite)
        return Simulation(cluster, seed=SEED, network_seed=3).run(program, return_exceptions=keep_going)


class TestVirtualWorldWithHostileScheduling(WorldSuite):
    def launch(self, program: Program, n: int, *, keep_going: bool = False) -> dict[Peer, Any]:
        simulation = Simulation(
            flat(n, latency=1e-4, bandwidth=1e7),
            seed=SEED,
            network_seed=17,
            fuzz=True,
            jitter=Jitter(kind="exponential", spread=0.9),
            faults=[Delay(0.0)],
            expand_collectives=True,
        )
        return simulation.run(program, return_exceptions=keep_going)
