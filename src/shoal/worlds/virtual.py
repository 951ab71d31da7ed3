"""The virtual world as one peer sees it.

Computations take what the device's model says, messages what the network model says, and all peers share one process
and one virtual clock (`shoal.worlds.simulation` starts them). Everything is deterministic: the same seeds give the same
run to the bit.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Hashable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, TypeVar

import torch
from torch import Generator, Tensor

from shoal.errors import PeerLost, ShoalError
from shoal.trace import Event, Span
from shoal.world import Link, Message, Payload, Peer, Tag, Work, only_bytes
from shoal.worlds.clock import VirtualLoop
from shoal.worlds.collective import Collectives
from shoal.worlds.computations import Computation, Lanes, Marks
from shoal.worlds.crew import Crew
from shoal.worlds.inbox import Match
from shoal.worlds.post import Address, Post, Transfer
from shoal.worlds.ring import ring_all_reduce
from shoal.worlds.seeds import generator

T = TypeVar("T")
Take = tuple[str, Peer, int, tuple[Hashable, ...]]
"""(kind, source, step, part) of a message that `recv_any` took."""


class VirtualWorld:
    """Implements `shoal.world.World`; made by a `Simulation`.

    Args:
        collectives: computes collectives in one go; None sends the ring's messages.
        takes: what `recv_any` must take, in this order per kind; when it runs out, what arrives first.
        on_step: told every step that this peer mentions in an event or a message of its own.
    """

    def __init__(
        self,
        loop: VirtualLoop,
        address: Address,
        addresses: Mapping[Peer, Address],
        post: Post,
        lanes: Lanes,
        crew: Crew,
        *,
        collectives: Collectives | None,
        device: torch.device,
        numeric: bool,
        seed: int,
        takes: Sequence[Take] = (),
        on_step: Callable[[int], None] | None = None,
    ) -> None:
        self._loop, self._address, self._addresses, self._post = loop, address, addresses, post
        self._lanes, self._crew, self._collectives = lanes, crew, collectives
        self._device, self._numeric, self._seed, self._on_step = device, numeric, seed, on_step
        self._inbox, self._trace, self._me = address.inbox, address.trace, address.peer
        self._peers = tuple(addresses)
        self._replay: dict[str, deque[tuple[Peer, Tag]]] = {}
        for kind, source, step, part in takes:
            self._replay.setdefault(kind, deque()).append((source, Tag(kind, step, part)))

    @property
    def me(self) -> Peer:
        return self._me

    @property
    def peers(self) -> tuple[Peer, ...]:
        return self._peers

    @property
    def device(self) -> torch.device:
        return self._device

    @property
    def numeric(self) -> bool:
        return self._numeric

    @property
    def sent_bytes(self) -> int:
        return self._address.sent_bytes

    @property
    def received_bytes(self) -> int:
        return self._address.received_bytes

    def now(self) -> float:
        return self._loop.time()

    async def sleep(self, seconds: float) -> None:
        self._check_alive()
        woken = self._loop.create_future()
        self._loop.at(self._address.sleep.awake(self._loop.time() + max(0.0, seconds)), _wake, woken)
        await woken

    # ---------------------------------------------------------------------------------------------- messages

    async def send(self, to: Peer, tag: Tag, body: Payload, *, priority: int = 0) -> None:
        """As `World.send`. `priority` changes nothing here: transfers share links fairly."""
        self._check_alive()
        target = self._addresses.get(to)
        if target is None or to == self._me:
            raise ValueError(f"{self._me!r} cannot send to {to!r}: peers of this run are {', '.join(self._peers)}")
        self._mention(tag.step)
        why = self._inbox.lost(to)
        if why is not None:
            raise PeerLost(to, tag.step, why)
        snapshot = body
        if not self._numeric:
            snapshot = body if not body.tensors else only_bytes(body.nbytes, body.codec)
        elif body.tensors:
            copies = tuple(t.detach().clone(memory_format=torch.contiguous_format) for t in body.tensors)
            snapshot = Payload(copies, body.nbytes, body.codec)
        message = Message(self._me, tag, snapshot)
        lent = body.tensors if self._numeric else ()
        transfer = Transfer(self._address, target, message, lent, self._loop.create_future())
        self._post.send(transfer)
        await transfer.done

    async def recv(self, tag: Tag, *, source: Peer, within: float | None = None) -> Message:
        self._check_alive()
        since = self._loop.time()
        message = await self._inbox.take(tag, source, within)
        self._waited(since, message)
        return message

    async def recv_any(self, kind: str, *, match: Match | None = None, within: float | None = None) -> Message:
        self._check_alive()
        since = self._loop.time()
        replay = self._replay.get(kind)
        if replay:
            source, tag = replay.popleft()
            message = await self._inbox.take(tag, source, within)
            if match is not None and not match(message):
                raise ShoalError(
                    f"the replay has left the recorded run: {self._me!r} would not have taken {source!r}'s {tag}"
                )
        else:
            message = await self._inbox.take_any(kind, match, within)
        self._waited(since, message)
        tag = message.tag
        self.event("take", message_kind=kind, source=message.source, step=tag.step, part=tag.part)
        return message

    def inbox(self, kind: str) -> Sequence[Message]:
        return self._inbox.look(kind)

    def discard(self, kind: str, *, before_step: int) -> int:
        return self._inbox.discard(kind, before_step)

    def _waited(self, since: float, message: Message) -> None:
        now = self._loop.time()
        if now > since:
            args = {"from": message.source, "step": message.tag.step}
            self._trace.span(Span(self._me, "wait", message.tag.kind, since, now, args))

    # ------------------------------------------------------------------------------------------ computations

    async def run(self, fn: Callable[[], T], work: Work, *, timing: T | None = None) -> T:
        self._check_alive()
        computation = Computation(fn if self._numeric else None, work, self._loop.create_future(), timing)
        self._lanes.add(computation)
        return await computation.future

    def reach(self, fn: Callable[[Callable[[Hashable], None]], Any], work: Work) -> AsyncIterator[Hashable]:
        self._check_alive()
        computation = Computation(None, work, self._loop.create_future())
        if self._numeric:
            computation.call = partial(fn, computation.marked.append)
        return Marks(self._lanes, computation)

    async def collective(
        self, op: Literal["sum"], x: Tensor, peers: Sequence[Peer], tag: Tag, *, nbytes: int | None = None
    ) -> None:
        """As `World.collective`; in one go, or by the ring's messages where the simulation was told to."""
        self._check_alive()
        if op != "sum":
            raise ValueError(f"no collective {op!r}; there is 'sum'")
        self._mention(tag.step)
        if self._collectives is None or len(peers) == 1:
            await ring_all_reduce(self, x, peers, tag, nbytes=nbytes)
            return
        nbytes = x.numel() * x.element_size() if nbytes is None else nbytes
        await self._collectives.reduce(self._address, x, peers, tag, nbytes)

    # ------------------------------------------------------------------------------------------------- other

    def spawn(self, coro: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        return self._crew.spawn(coro, name)

    def rng(self, *key: Hashable) -> Generator:
        return generator(self._seed, *key)

    def link(self, to: Peer) -> Link:
        network = self._post.network
        return Link(network.latency(self._me, to), network.bandwidth(self._me, to))

    def event(self, kind: str, **fields: Any) -> None:
        self._trace.event(Event(self._me, kind, self._loop.time(), fields))
        self._mention(fields.get("step"))

    def _mention(self, step: Any) -> None:
        """A crash may be planned for this step."""
        if self._on_step is not None and isinstance(step, int):
            self._on_step(step)
            self._check_alive()

    def _check_alive(self) -> None:
        """A peer that has died does nothing more, not even in its tasks' clean-up."""
        if self._address.gone:
            raise asyncio.CancelledError


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
