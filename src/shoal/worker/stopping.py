"""One peer is asked to stop; all stop after the same step.

Neighbours in a gossip may be two steps apart, so nobody may simply stop where it stands: a partner would wait for it
for ever. The asked peer tells the leader; the leader asks everybody; each answers *at once*, from beside its training,
with the step that it is doing, and promises to begin no later one before it is told more; the leader announces the
largest answer. Everybody can reach that step, because nobody stopped before it.

At the end of a run that nobody stopped, the leader releases the others, so an agreement never meets a peer that left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import torch

from shoal.errors import Late
from shoal.world import Message, Payload, Tag, World, dense

ASK, WHEN, AT, AFTER = "stop-ask", "stop-when", "stop-at", "stop-after"
OVER, AGREE = 0, 1
"""What the leader's `WHEN` says: the run is over, or there is something to agree on."""


class Stopping:
    """Args:
    should_stop: polled between steps; true once this peer was asked to stop from outside.
    """

    def __init__(self, world: World, should_stop: Callable[[], bool]) -> None:
        self._world, self._should_stop = world, should_stop
        self._leader = world.peers[0]
        self._others = world.peers[1:] if world.numeric else ()  # numbers do not travel in timing mode
        self._doing = -1  # the step in progress, or the last one done
        self._asked = False
        self._decided: asyncio.Event | None = None  # there once an agreement is being made
        self.last_step: int | None = None
        self._server = world.spawn(self._serve(), "stopping") if self._others else None

    async def may_begin(self, step: int) -> bool:
        """Whether `step` shall still be done. Waits while an agreement is being made (its messages have deadlines)."""
        if not self._asked and self._should_stop():
            self._asked = True
            if self._world.me == self._leader:
                self._agree()
            else:
                await self._world.send(self._leader, Tag(ASK), _number(step))
        if self._decided is not None:
            await self._decided.wait()
        if self.last_step is not None and step > self.last_step:
            return False
        self._doing = step
        return True

    async def finish(self) -> None:
        """My part of the run is done. Returns when no agreement can come any more."""
        if not self._others:
            return
        if self._world.me != self._leader:
            assert self._server is not None
            await self._server
        elif self._decided is not None:
            await self._decided.wait()
        else:
            self._decided = asyncio.Event()
            for peer in self._others:
                await self._world.send(peer, Tag(WHEN), _number(OVER))

    def cancel(self) -> None:
        """Whatever happened, wait for nothing any more."""
        if self._server is not None:
            self._server.cancel()

    async def _serve(self) -> None:
        if self._world.me == self._leader:
            await _patiently(lambda: self._world.recv_any(ASK))
            self._agree()
            return
        if _read(await _patiently(lambda: self._world.recv(Tag(WHEN), source=self._leader))) == OVER:
            return
        self._decided = asyncio.Event()
        await self._world.send(self._leader, Tag(AT), _number(self._doing))
        self._decide(_read(await self._world.recv(Tag(AFTER), source=self._leader)))

    def _agree(self) -> None:
        if self._decided is None:
            self._decided = asyncio.Event()
            self._world.spawn(self._ask_all(self._doing), "stopping")

    async def _ask_all(self, doing: int) -> None:
        for peer in self._others:
            await self._world.send(peer, Tag(WHEN), _number(AGREE))
        last = max([doing, *[_read(await self._world.recv(Tag(AT), source=peer)) for peer in self._others]])
        for peer in self._others:
            await self._world.send(peer, Tag(AFTER), _number(last))
        self._decide(last)

    def _decide(self, last: int) -> None:
        self.last_step = last
        self._world.event("stopping", step=last)
        assert self._decided is not None
        self._decided.set()


async def _patiently(take: Callable[[], Awaitable[Message]]) -> Message:
    """Wait through any number of deadlines: most runs never stop early. A lost peer still ends the wait."""
    while True:
        try:
            return await take()
        except Late:
            continue


def _number(value: int) -> Payload:
    return dense(torch.tensor([value]))


def _read(message: Message) -> int:
    return int(message.one(torch.zeros(1, dtype=torch.int64)))
