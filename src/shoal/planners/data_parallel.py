"""Data parallel: every device holds the whole model and takes a share of each step's samples.

N routes of one segment. All devices own all blocks, so one sync covers them.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from shoal import costs, ingredients, registry, topology
from shoal.cluster import Cluster
from shoal.errors import UserError
from shoal.job import Job
from shoal.plan import BlockSpec, Costs, Plan, Route, Segment, Sync, split
from shoal.state.layout import plan_blocks


def plan(job: Job, cluster: Cluster, *, loaded: ingredients.Ingredients | None = None) -> Plan:
    """The data-parallel plan of `job` on `cluster`. Deterministic: every host that computes it gets the same one.

    Args:
        loaded: the job's ingredients, if the caller has them already.

    Raises:
        UserError: fewer samples per step than devices, or ingredients that cannot be used.
    """
    peers = cluster.peers
    if job.batch.size < len(peers):
        raise UserError(
            f"{len(peers)} devices cannot share a batch of {job.batch.size} samples",
            key="batch.size",
            mend=f"write at least {len(peers)}",
        )
    island = {peer: cluster.island_of(peer) for peer in peers}
    _check_topology(job, peers, island)
    loaded = loaded or ingredients.load(job)
    sample = loaded.corpus.train.batch([0, 1 % len(loaded.corpus.train)])
    seen = costs.profile(loaded.model, loaded.loss, _cast(sample, job))
    blocks = plan_blocks(loaded.model, seen.ready_order, bucket_bytes=int(job.mixing.bucket), decay_of=has_decay)
    return Plan(
        routes=tuple(
            Route(name=peer, segments=(Segment(name="all", device=peer),), share=share)
            for peer, share in split(job.batch.size, peers).items()
        ),
        blocks=blocks,
        sync=(_sync(job, blocks),),
        island=island,
        costs=Costs(forward_flops=seen.forward_flops, backward_flops=seen.backward_flops),
        model_digest=ingredients.model_digest(loaded.model),
    )


def has_decay(name: str, parameter: Tensor) -> bool:
    """Weight decay is for matrices; biases, norms and other vectors go without."""
    return parameter.ndim >= 2


def _check_topology(job: Job, peers: tuple[str, ...], island: Mapping[str, int]) -> None:
    """A mixing that needs a topology has one, and it is sound for these peers at every step."""
    needs = registry.strategy("mixing", job.mixing.name).traits.topology
    name = job.mixing.topology
    if needs and name is None:
        known = ", ".join(registry.names("topology"))
        problem = f"{job.mixing.name} needs a topology"
        raise job.error("mixing.topology", problem, mend=f"write one of {known}", shown=False)
    if name is not None and not needs:
        raise job.error("mixing.topology", f"{job.mixing.name} has no topology", mend="leave the key out")
    if name is not None:
        topology.check(registry.strategy("topology", name)(), peers, island)


def _sync(job: Job, blocks: tuple[BlockSpec, ...]) -> Sync:
    return Sync(blocks=tuple(b.name for b in blocks), mixing=job.mixing.name, topology=job.mixing.topology)


def _cast(batch: tuple[Tensor, ...], job: Job) -> tuple[Tensor, ...]:
    """Floating-point inputs in the parameters' dtype."""
    dtype = ingredients.DTYPES[job.run.precision]
    return tuple(t.to(dtype) if t.is_floating_point() else t for t in batch)
