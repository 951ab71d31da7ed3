"""Checkpoints of a running job: every peer writes its shard, and the leader makes the checkpoint exist when all did.

Whatever travels is settled first, so a checkpoint holds parameters, optimizer and mixing state and nothing else: the
learning rate, the data position and every random number are functions of the step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import nn

from shoal.errors import BadMessage, UserError
from shoal.job import Job
from shoal.mixing import Mixing
from shoal.state import Block, checkpoint, snapshot
from shoal.worker.letters import pack, unpack
from shoal.world import Message, Tag, Task, Work, World

WRITTEN, COMMITTED = "shard-written", "checkpoint-whole"


class Saver:
    """Args:
    folder: the run's checkpoint folder; it may be shared by all peers or be on each peer's own disk.
    on_whole: told at every peer of the step and the folder of each checkpoint once it is whole.
    """

    def __init__(
        self,
        world: World,
        job: Job,
        model: nn.Module,
        blocks: Sequence[Block],
        mixing: Mixing,
        folder: Path,
        on_whole: Callable[[int, Path], None],
    ) -> None:
        self._world, self._job, self._model, self._blocks = world, job, model, blocks
        self._mixing, self._folder, self._on_whole = mixing, folder, on_whole
        self._pending: Task[None] | None = None

    def offers(self) -> list[int]:
        """Steps that this peer could resume from."""
        return [found.step for found in checkpoint.whole(self._folder, peers=self._world.peers, mine=self._world.me)]

    async def save(self, step: int) -> None:
        """Write the state after `step` steps. Returns when my shard is on the disk; the rest goes on."""
        await self.flush()
        await self._mixing.settle()
        info = await self._world.run(lambda: self._write(step), Work("checkpoint", lane="to_host"))
        self._pending = self._world.spawn(self._confirm(step, info), "checkpoint")

    async def flush(self) -> None:
        """Returns when the last checkpoint is whole."""
        if self._pending is not None:
            await self._pending
            self._pending = None

    def load(self, step: int) -> None:
        """Take over the state after `step` steps.

        Raises:
            UserError: the checkpoint is of another model or job; names the first difference.
        """
        shard = checkpoint.read_shard(checkpoint.find(self._folder, step), self._world.me)
        refuse_other_job(shard.meta.get("job", {}), trained_by(self._job), where=str(self._folder))
        snapshot.restore(self._model, self._blocks, shard.tensors, shard.scalars)

    def _write(self, step: int) -> checkpoint.ShardInfo:
        tensors, scalars = snapshot.capture(self._model, self._blocks)
        meta = {"job": trained_by(self._job)}
        return checkpoint.write_shard(self._folder, step, self._world.me, tensors, scalars, meta)

    async def _confirm(self, step: int, info: checkpoint.ShardInfo) -> None:
        world, leader = self._world, self._world.peers[0]
        if world.me == leader:
            infos = [info, *[_info(await world.recv(Tag(WRITTEN, step), source=peer)) for peer in world.peers[1:]]]
            self._commit(step, infos)
            for peer in world.peers[1:]:
                await world.send(peer, Tag(COMMITTED, step), pack({"shards": [asdict(i) for i in infos]}))
        else:
            await world.send(leader, Tag(WRITTEN, step), pack({"shards": [asdict(info)]}))
            message = await world.recv(Tag(COMMITTED, step), source=leader)
            self._commit(step, [checkpoint.ShardInfo(**raw) for raw in _shards(message)])
        self._on_whole(step, checkpoint.step_folder(self._folder, step))

    def _commit(self, step: int, infos: Sequence[checkpoint.ShardInfo]) -> None:
        """Write the manifest, unless the leader did so in the folder that we share."""
        if not (checkpoint.step_folder(self._folder, step) / checkpoint.MANIFEST).exists():
            checkpoint.commit(self._folder, step, infos, {"job": self._job.name})
            checkpoint.prune(self._folder, self._job.run.keep)


def trained_by(job: Job) -> dict[str, Any]:
    """The settings that a run's state depends on. Steps, reports and deadlines may change on a resume."""
    tables = job.model_dump(mode="json", include={"model", "data", "batch", "optimizer", "mixing"})
    tables["run"] = {"seed": job.run.seed, "precision": job.run.precision}
    return tables


def refuse_other_job(saved: Mapping[str, Any], now: Mapping[str, Any], *, where: str) -> None:
    """Refuse to go on with other settings than the checkpoint's; names the first that differs."""
    for table in sorted({*saved, *now}):
        before, after = saved.get(table, {}), now.get(table, {})
        for key in sorted({*before, *after}):
            if before.get(key) != after.get(key):
                raise UserError(
                    f"the checkpoint was trained with {before.get(key)!r}",
                    file=where,
                    key=f"{table}.{key}",
                    value=after.get(key),
                    mend="write it back, or start a new run without --resume",
                )


def _shards(message: Message) -> list[dict[str, Any]]:
    raw = unpack(message).get("shards")
    fields = {"peer", "file", "nbytes", "sha256"}
    if not isinstance(raw, list) or not all(isinstance(s, dict) and set(s) == fields for s in raw):
        raise BadMessage(message.source, message.tag.step, "checkpoint confirmation: not readable")
    return raw


def _info(message: Message) -> checkpoint.ShardInfo:
    return checkpoint.ShardInfo(**_shards(message)[0])
