"""Surveys of made clusters in virtual time."""

from __future__ import annotations

from collections.abc import Mapping

from shoal.cluster import Cluster
from shoal.probe import About, Progress, Settings, Survey, survey
from shoal.world import World
from shoal.worlds.faults import Jitter
from shoal.worlds.simulation import Simulation


def survey_in_virtual_time(
    cluster: Cluster,
    *,
    settings: Settings | None = None,
    physical: Mapping[str, str] | None = None,
    clock_ahead: Mapping[str, float] | None = None,
    jitter: Jitter | None = None,
    numeric: bool = False,
    told: list[Progress] | None = None,
) -> tuple[Survey, float]:
    """The survey of `cluster`, and the virtual seconds that it took.

    Args:
        physical: host → physical machine; each its own by default.
        clock_ahead: host → seconds by which its wall clock is ahead of the virtual one.
    """

    async def program(world: World) -> Survey | None:
        device = cluster.device(world.me)
        about = About(
            host=device.host,
            machine=device.host,
            physical=(physical or {}).get(device.host, device.host),
            kind=device.kind,
            named=True,
            memory_bytes=device.memory_bytes,
            host_memory_bytes=cluster.hosts[device.host].memory_bytes,
        )
        ahead = (clock_ahead or {}).get(device.host, 0.0)
        tell = (lambda progress: None) if told is None else told.append
        return await survey(world, about, settings, wall=lambda: world.now() + ahead, tell_progress=tell)

    simulation = Simulation(cluster, numeric=numeric, jitter=jitter)
    results = simulation.run(program)
    leader, *others = cluster.peers
    assert all(results[peer] is None for peer in others)
    found = results[leader]
    assert found is not None
    return found, simulation.now


def made_survey(
    hosts: Mapping[str, int],
    bandwidth: Mapping[tuple[str, str], float],
    *,
    latency: float = 0.01,
    flops: float = 1e11,
    spread: float = 0.01,
) -> Survey:
    """A survey as if measured: host → number of devices, and bytes/s of ordered pairs."""
    from shoal.probe.figures import DeviceFacts, Figure, HostFacts, Way

    devices = {
        f"{host}-{n}": DeviceFacts(
            host=host,
            kind="cpu",
            memory_bytes=4 * 2.0**30,
            memory_bandwidth=Figure(value=1e10),
            flops={"float32": Figure(value=flops, spread=0.02), "bfloat16": Figure(value=2 * flops)},
        )
        for host, count in hosts.items()
        for n in range(count)
    }
    ways = {
        pair: Way(
            latency_s=latency,
            least_latency_s=latency,
            jitter_s=0.0,
            pings=20,
            bandwidth=Figure(value=value, spread=spread),
            settled=True,
            nbytes=1000,
            seconds=1.0,
        )
        for pair, value in bandwidth.items()
    }
    leader = next(iter(hosts))
    facts = {host: HostFacts(memory_bytes=8 * 2.0**30 * count) for host, count in hosts.items()}
    return Survey(leader=leader, devices=devices, hosts=facts, ways=ways, seconds=10.0, nbytes=1000 * len(ways))
