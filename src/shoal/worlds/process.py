"""The process world: one peer per process, a real clock, real sockets, computations on the real device.

`run_process` is the whole life of one peer: it finds the others, runs the program, says goodbye, and leaves no thread,
socket or port behind. All protocol code runs on one event loop; computations run in threads, one per lane.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Hashable, Mapping, Sequence
from functools import partial
from time import monotonic
from typing import Any, Literal, TypeVar

import torch
from torch import Generator, Tensor

from shoal import registry
from shoal.errors import PeerLost, UserError
from shoal.trace import Event, Span, Trace
from shoal.transport import Frame, Meeting, Transport
from shoal.transport.staging import Staging
from shoal.world import Link, Message, Payload, Peer, Tag, Work
from shoal.worlds.crew import Crew
from shoal.worlds.inbox import Inbox, Match
from shoal.worlds.pacing import Pace
from shoal.worlds.process_engine import Engine
from shoal.worlds.process_lanes import Lanes
from shoal.worlds.process_peers import URGENT, Peers
from shoal.worlds.rendezvous import Coordinator, from_environment, meet
from shoal.worlds.ring import position, ring_all_reduce
from shoal.worlds.seeds import generator

T = TypeVar("T")
Program = Callable[["ProcessWorld"], Coroutine[Any, Any, T]]

LOSS_GRACE = 0.25
"""Seconds that a program has to end by itself when a peer is lost, before it is ended from outside. Waits for that peer
fail at once, with their own step; this is for a program that waits for something else, or computes."""

COMPUTE_GRACE = 1.0
"""Seconds that a computation has to end (at its next mark) when the world has failed."""

FAILURE_GRACE = 1.0
"""Seconds in which the others may take the news of this peer's failure."""


class ProcessWorld:
    """One peer's outside; implements `shoal.world.World`. Made and ended by `run_process`.

    Args:
        meeting: the peers, found.
        trace: gets spans on the lanes, ``"send"`` and ``"wait"``, and the event log.
        links: what is known of the way to each peer.
        collective: ``"ring"`` (messages, the bits of every world) or ``"engine"`` (Gloo; NCCL on GPUs).
        seconds: what each computation is to take at least (`Pace`); None leaves them as fast as they are.
    """

    numeric = True

    def __init__(
        self,
        meeting: Meeting,
        transport: Transport,
        *,
        device: torch.device,
        seed: int,
        threads: int,
        peer_deadline: float,
        wait_deadline: float,
        trace: Trace,
        collective: Literal["ring", "engine"],
        links: Mapping[Peer, Link],
        seconds: Callable[[Work], float] | None = None,
    ) -> None:
        self.me, self.peers, self.device = meeting.hello.peer, meeting.peers, device
        self.sent_bytes = self.received_bytes = 0
        self._meeting, self._transport, self._trace, self._links, self._seed = meeting, transport, trace, links, seed
        self._zero, self._step, self._steps_are_told = monotonic(), 0, False
        self._loop = asyncio.get_running_loop()
        others = [peer for peer in self.peers if peer != self.me]
        self._inbox = Inbox(self._loop, len(others), deadline=wait_deadline)
        self._crew = Crew(self._loop)
        self._pace = Pace(seconds) if seconds is not None else None
        self._lanes = Lanes(device, seed=seed, threads=threads, on_span=self._computed, pace=self._pace)
        self._others = Peers(self.me, others, transport, deadline=peer_deadline, on_gone=self._gone)
        self._closed = False
        self._watch: asyncio.Task[None] | None = None
        self._culprit: Peer | None = None  # the peer whose loss ends this run
        self._ending: asyncio.TimerHandle | None = None
        self._peer_deadline = peer_deadline
        self._staging = Staging(device) if device.type == "cuda" else None
        self._engine: Engine | None = None
        if collective == "engine":
            meeting.refuse_port_range("the engine of collectives")
            self._engine = Engine(
                self.me,
                self.peers,
                store=meeting.store,
                host=meeting.host,
                device=device,
                deadline=wait_deadline,
                tell=partial(transport.send, priority=URGENT),
                prepare=self._lanes.prepare,
            )

    # -------------------------------------------------------------------------------------------------- time

    def now(self) -> float:
        return monotonic() - self._zero

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(max(0.0, seconds))

    # ---------------------------------------------------------------------------------------------- messages

    async def send(self, to: Peer, tag: Tag, body: Payload, *, priority: int = 0) -> None:
        """As `World.send`. A higher `priority` overtakes messages to the same peer that still wait for their turn.

        Bounded by the peer's deadline: a peer that lives takes what is sent to it, one that is silent is given up.
        """
        if to == self.me or to not in self.peers:
            raise ValueError(f"{self.me!r} cannot send to {to!r}: peers of this run are {', '.join(self.peers)}")
        why = self._inbox.lost(to)
        if why is not None:
            raise PeerLost(to, tag.step, why)
        self._notice(tag.step)
        start = self.now()
        if self._staging is not None:
            copying = self._lanes.lane("to_host").job(partial(self._staging.to_host, body.tensors))
            body = Payload(await copying.result(), body.nbytes, body.codec)
        self.sent_bytes += body.nbytes
        try:
            await self._transport.send(to, Frame(tag, body), priority=priority)
        except PeerLost:
            if self._culprit not in (None, to):
                await asyncio.sleep(2 * LOSS_GRACE)  # `to` has stopped for the same reason as this peer is about to
            raise
        args = {"to": to, "step": tag.step, "bytes": body.nbytes}
        self._trace.span(Span(self.me, "send", tag.kind, start, self.now(), args))

    async def recv(self, tag: Tag, *, source: Peer, within: float | None = None) -> Message:
        self._notice(tag.step)
        since = self.now()
        message = await self._inbox.take(tag, source, within)
        self._waited(since, message)
        return message

    async def recv_any(self, kind: str, *, match: Match | None = None, within: float | None = None) -> Message:
        since = self.now()
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
        args = {"from": message.source, "step": message.tag.step}
        self._trace.span(Span(self.me, "wait", message.tag.kind, since, self.now(), args))

    # ------------------------------------------------------------------------------------------ computations

    async def run(self, fn: Callable[[], T], work: Work, *, timing: T | None = None) -> T:
        """As `World.run`; `timing` is not used. Cancelling waits for the end of a computation that has begun."""
        return await self._lanes.run(fn, work)

    def reach(self, fn: Callable[[Callable[[Hashable], None]], Any], work: Work) -> AsyncIterator[Hashable]:
        return self._lanes.reach(fn, work)

    async def collective(
        self, op: Literal["sum"], x: Tensor, peers: Sequence[Peer], tag: Tag, *, nbytes: int | None = None
    ) -> None:
        """As `World.collective`: the ring's messages, or the engine's own sum in an order that all peers share."""
        if op != "sum":
            raise ValueError(f"no collective {op!r}; there is 'sum'")
        position(peers, self.me)
        self._notice(tag.step)
        if self._engine is None:
            await ring_all_reduce(self, x, peers, tag, nbytes=nbytes)
            return
        start = self.now()
        await self._engine.all_reduce(x, peers, tag)
        share = 2 * x.numel() * x.element_size() * (len(peers) - 1) // len(peers)  # what an all-reduce moves at least
        self.sent_bytes += share
        self.received_bytes += share
        self._trace.span(Span(self.me, "send", tag.kind, start, self.now(), {"step": tag.step, "bytes": share}))

    def _computed(self, lane: str, label: str, start: float, stop: float) -> None:
        self._trace.span(Span(self.me, lane, label, start - self._zero, stop - self._zero))

    # ------------------------------------------------------------------------------------------------- other

    def spawn(self, coro: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        return self._crew.spawn(coro, name)

    def rng(self, *key: Hashable) -> Generator:
        return generator(self._seed, *key)

    def link(self, to: Peer) -> Link:
        """What was predicted; without a prediction, a link that costs nothing."""
        return self._links.get(to, Link(0.0, float("inf")))

    def event(self, kind: str, **fields: Any) -> None:
        self._trace.event(Event(self.me, kind, self.now(), fields))
        if kind == "step" and isinstance(fields.get("step"), int):
            if self._pace is not None:
                (self._pace.note if self._steps_are_told else self._pace.forgive)()
            self._step, self._steps_are_told = fields["step"], True

    def _notice(self, step: int) -> None:
        """Where this peer is, for errors: at the step that it told last, or failing that, of its last message."""
        if not self._steps_are_told:
            self._step = step

    # ----------------------------------------------------------------------------------------- life and death

    async def start(self) -> None:
        """Connect to all others; returns when all are connected to all, which is the time 0.

        Raises:
            PeerLost: a peer is missing, refused, or was lost meanwhile.
        """
        await self._transport.start(
            self._meeting, on_frame=self._arrived, on_lost=self._others.gone, pin=self._staging is not None
        )
        ready = self._loop.create_task(self._ready(), name="get ready")
        await asyncio.wait({ready, self._crew.over}, return_when=asyncio.FIRST_COMPLETED)
        if not ready.done():
            ready.cancel()
            await asyncio.wait([ready])
            self._crew.over.result()
        ready.result()
        self._zero = monotonic()
        self._watch = self._loop.create_task(self._others.watch(), name="watch")

    async def _ready(self) -> None:
        if self._engine is not None:
            await self._engine.connect()
        await self._meeting.exchange("connected", "")

    async def play(self, program: Program[T]) -> T:
        """Run the program and all that it spawns; then say goodbye, or what went wrong."""
        main = self._crew.spawn(program(self), "main")
        try:
            await self._crew.over
            result = main.result()
        except BaseException as error:
            winding_up = self._loop.create_task(self._crew.wind_up(), name="wind up")
            await self._say(self._others.say_failure(error, self._step), FAILURE_GRACE)
            await self.close(FAILURE_GRACE)
            await winding_up
            raise
        await self._say(self._others.say_goodbye(), self._peer_deadline)
        await self.close(self._peer_deadline)
        return result

    async def close(self, grace: float) -> None:
        """End everything that this world has started. What has been said is given `grace` seconds to arrive."""
        if self._closed:
            return
        self._closed = True
        if self._pace is not None:
            self.event("pace", asked_s=self._pace.of_steps.asked_s, debt_s=self._pace.of_steps.debt_s)
        if self._crew.over.done():
            self._crew.over.exception()  # has been seen
        if self._ending is not None:
            self._ending.cancel()
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.wait([self._watch])
        await self._transport.close(grace)
        if self._engine is not None:
            self._engine.close(COMPUTE_GRACE)
        self._lanes.close(COMPUTE_GRACE)

    async def _say(self, saying: Coroutine[Any, Any, None], seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await saying
        except TimeoutError:
            pass  # somebody does not take it; the connection's end will tell

    def _arrived(self, peer: Peer, frame: Frame) -> None:
        if self._inbox.lost(peer) is not None:
            return  # it was given up, and speaks again
        try:
            if frame.purpose == "message":
                self.received_bytes += frame.body.nbytes
                self._deliver(Message(peer, frame.tag, frame.body))
            elif frame.purpose in ("ready", "go"):
                if self._engine is not None:
                    self._engine.take(peer, frame)
            else:
                self._others.take(peer, frame)
        except (LookupError, TypeError, ValueError) as error:
            self._others.gone(peer, f"sent a {frame.purpose!r} that makes no sense: {error!r}")

    def _deliver(self, message: Message) -> None:
        if self._staging is None:
            self._inbox.put(message)
            return
        body = message.body
        copying = self._lanes.lane("to_device").submit(partial(self._staging.to_device, body.tensors))

        def put(done: asyncio.Future[tuple[Tensor, ...]]) -> None:
            if done.cancelled():
                return
            if (error := done.exception()) is not None:
                self._crew.stop(error if isinstance(error, Exception) else RuntimeError(repr(error)))
                return
            self._inbox.put(Message(message.source, message.tag, Payload(done.result(), body.nbytes, body.codec)))

        copying.add_done_callback(put)

    def _gone(self, peer: Peer, why: str, *, failed: bool) -> None:
        """A peer is gone: waits for it fail. If it has not finished its program, this one cannot go on either."""
        if self._staging is None:
            self._inbox.lose(peer, why)
        else:  # after what it sent before
            copied = self._lanes.lane("to_device").submit(lambda: None)
            copied.add_done_callback(lambda _: self._inbox.lose(peer, why))
        if failed:
            self.event("peer-lost", peer=peer, step=self._step, why=why)
            if self._culprit is None:
                self._culprit = peer
                self._ending = self._loop.call_later(LOSS_GRACE, self._crew.stop, PeerLost(peer, self._step, why))


def run_process(
    program: Program[T],
    *,
    me: Peer,
    peers: Sequence[Peer],
    coordinator: Coordinator | None = None,
    device: torch.device | None = None,
    transport: str = "streams",
    collective: Literal["ring", "engine"] = "ring",
    seed: int = 0,
    threads: int = 1,
    peer_deadline: float = 15.0,
    wait_deadline: float = 600.0,
    start_deadline: float = 60.0,
    digest: str = "",
    trace: Trace | None = None,
    links: Mapping[Peer, Link] | None = None,
    seconds: Callable[[Work], float] | None = None,
) -> T:
    """Be peer `me`: find the others, run ``await program(world)``, say goodbye; returns what the program returned.

    Tasks that the program has spawned are awaited before its result counts. Nothing is left behind, whatever happens.

    Args:
        peers: all peers of the run, `me` included.
        coordinator: where the peers find one another; read from the environment by default. One peer needs none.
        device: where to compute; the CPU by default.
        transport: a name at that seam.
        seed: the job's seed.
        threads: intra-op threads of each lane.
        peer_deadline: seconds after which a silent peer is given up.
        wait_deadline: seconds that a wait without a deadline of its own may take.
        start_deadline: seconds in which all peers must have come and be connected.
        digest: of the plan; peers with another one refuse each other.
        links: predicted links to the others.
        seconds: how long computations are to take, for a device that is not here; None: as long as they do.

    Raises:
        PeerLost: a peer did not come, died, fell silent or failed; names it and the step.
        BadMessage: a peer was handed another plan.
        UserError: an address, port, interface or device cannot be used.
        Exception: whatever the program or one of its tasks raised.
    """
    device = device or torch.device("cpu")
    if device.type not in ("cpu", "cuda"):
        raise UserError(
            "no such device in processes", key="device.kind", value=device.type, mend='write "cpu" or "cuda"'
        )
    if me not in peers or len(set(peers)) != len(peers):
        raise ValueError(f"{me!r} must be one of distinct peers, got {list(peers)}")

    async def live() -> T:
        meeting = await meet(where, me=me, peers=peers, digest=digest, deadline=start_deadline)
        world = None
        try:
            world = ProcessWorld(
                meeting,
                registry.strategy("transport", transport)(),
                device=device,
                seed=seed,
                threads=threads,
                peer_deadline=peer_deadline,
                wait_deadline=wait_deadline,
                trace=trace or Trace(span_limit=0, on_event=lambda event: None),
                collective=collective,
                links=links or {},
                seconds=seconds,
            )
            await world.start()
            return await world.play(program)
        finally:
            if world is not None:
                await world.close(0.0)
            meeting.close()

    where = coordinator or (from_environment() if len(peers) > 1 else None)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with asyncio.Runner() as runner:
            return runner.run(live())
    finally:
        torch.set_num_threads(before)
