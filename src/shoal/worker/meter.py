"""Progress over all workers: each tells the leader what it did since the last report; the leader adds it up.

The messages are a few dozen bytes, travel beside training and are summed in the order of peers, so the figures are the
same in every world.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from shoal.world import Payload, Tag, Task, World, dense, only_bytes


@dataclass(slots=True)
class Tally:
    """Sums since the last report."""

    loss: float = 0.0
    weight: float = 0.0

    def add(self, loss: float, weight: float) -> None:
        self.loss += loss
        self.weight += weight

    def mean(self) -> float | None:
        return self.loss / self.weight if self.weight else None


class Meter:
    """Sums numbers over peers at the leader without holding up training.

    `gather` may be called by all peers with the same (kind, step) and equally many values.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._pending: list[Task[None]] = []

    def gather(self, kind: str, step: int, values: Sequence[float], then: Callable[[list[list[float]]], None]) -> None:
        """Send `values` to the leader; there, call `then` with the values of all peers in their order."""
        work = self._collect if self._world.me == self._world.peers[0] else self._tell
        self._pending = [task for task in self._pending if not task.done()]
        self._pending.append(self._world.spawn(work(Tag(kind, step), list(values), then), f"meter {kind}"))

    async def flush(self) -> None:
        """Returns when everything has been told."""
        for task in self._pending:
            await task
        self._pending.clear()

    async def _tell(self, tag: Tag, values: list[float], then: Callable[[list[list[float]]], None]) -> None:
        await self._world.send(self._world.peers[0], tag, self._body(values))

    async def _collect(self, tag: Tag, values: list[float], then: Callable[[list[list[float]]], None]) -> None:
        rows = [values]
        like = torch.zeros(len(values), dtype=torch.float64)
        for peer in self._world.peers[1:]:
            message = await self._world.recv(tag, source=peer)
            rows.append(message.one(like, finite=False).tolist() if self._world.numeric else values)
        then(rows)

    def _body(self, values: list[float]) -> Payload:
        return dense(torch.tensor(values, dtype=torch.float64)) if self._world.numeric else only_bytes(8 * len(values))
