"""One worker's process from the inside: its world, its logs, and what it says at the end.

Shared by the workers that Shoal's launcher starts (`shoal.launch.child`) and those that torchrun, Slurm or the like
start (`shoal.launch.torchrun`).
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from shoal.cluster import Cluster
from shoal.errors import UserError
from shoal.launch.logs import EventLog, SpanFile
from shoal.launch.prepare import Prepared
from shoal.trace import Trace
from shoal.worker import Outcome, Report, work
from shoal.world import Link, World
from shoal.worlds.process import run_process
from shoal.worlds.rendezvous import Coordinator

START_SECONDS, SECONDS_PER_WORKER = 60.0, 10.0
"""How long the workers wait for one another at the start. Many of them on few cores take long to import torch; where
a launcher watches them, one that fails to start is noticed at once all the same."""


def run_session(
    prepared: Prepared,
    peer: str,
    *,
    coordinator: Coordinator,
    session: str,
    device: torch.device,
    tell: Callable[[Report], None],
    should_stop: Callable[[], bool],
    paced: bool = False,
) -> Outcome:
    """Be `peer` until the run ends, and leave its events and spans in the run's folder.

    Args:
        session: the same for all peers, and for no other session of this folder.
        paced: computations take the time of the peer's device in the cluster file.

    Raises:
        ShoalError: what the worker or its world raised.
    """
    job, folder = prepared.job, prepared.folder
    log = EventLog(folder.events(peer), session=session)
    trace = Trace(on_event=log)
    mine = prepared.cluster.device(peer)

    async def program(world: World) -> Outcome:
        return await work(
            world, job, prepared.plan, folder=folder, resume=prepared.resume, tell=tell, should_stop=should_stop
        )

    try:
        with SpanFile(folder.spans(peer), trace):
            return run_process(
                program,
                me=peer,
                peers=prepared.plan.peers,
                coordinator=coordinator,
                device=device,
                transport=job.run.transport,
                collective=job.run.collective,
                seed=job.run.seed,
                threads=job.run.threads or 1,
                peer_deadline=job.run.peer_deadline,
                wait_deadline=job.run.wait_deadline,
                digest=prepared.plan.digest(),
                trace=trace,
                start_deadline=max(START_SECONDS, SECONDS_PER_WORKER * len(prepared.plan.peers)),
                links=_predicted(prepared.cluster, peer),
                seconds=(lambda work: mine.seconds(work.flops, work.touched_bytes)) if paced else None,
            )
    finally:
        log.close()


def _predicted(cluster: Cluster, peer: str) -> dict[str, Link]:
    """What the cluster file says of the ways from `peer` to the others, until something has been measured."""
    ways = {other: cluster.link(peer, other) for other in cluster.peers if other != peer}
    return {other: Link(way.latency_s, way.bandwidth_bytes_per_s) for other, way in ways.items()}


def torch_device(prepared: Prepared, peer: str, *, number: int | None = None, played: bool = False) -> torch.device:
    """Where `peer` computes.

    Args:
        number: which of this machine's devices of that kind; None counts the peers of that kind before it.
        played: compute on the CPU what this machine has no device for.

    Raises:
        UserError: this machine has no such device.
    """
    kind = prepared.cluster.device(peer).kind
    if kind == "cpu":
        return torch.device("cpu")
    alike = [name for name in prepared.cluster.peers if prepared.cluster.device(name).kind == kind]
    module = getattr(torch, kind, None)
    available = module.device_count() if module is not None and module.is_available() else 0
    number = alike.index(peer) if number is None else number
    if number >= available and played:
        return torch.device("cpu")
    if number >= available:
        raise UserError(
            f"device {peer!r} is of kind {kind!r}, and this machine has {available} of those",
            key="device.kind",
            value=kind,
            mend='write kind = "cpu", or start the workers where the devices are',
        )
    return torch.device(kind, number)
