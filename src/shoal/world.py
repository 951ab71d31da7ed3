"""The World: all that a worker may touch outside its own memory.

Workers and every protocol in them are ordinary ``async def`` code. Time, messages to named peers, computation on the
device, randomness and the event log come from a `World`, so the same code runs in real processes
(`shoal.worlds.process`) and in virtual time (`shoal.worlds.virtual`).

Rules that both worlds rely on:

* `World.recv` takes by (source, tag), so no order of arrival can deadlock or change a result.
* `World.send` *borrows* the tensors of its payload until it returns; writing them earlier is a race, which a virtual
  world detects.
* A computation (`World.run`, `World.reach`) is synchronous, never communicates, and is the only place where a block's
  tensors are read or written. Additions are done in the order of peers, never in the order of arrival.
* In timing mode (`World.numeric` is false) computations are not executed: `run` returns `timing`, `reach` yields the
  keys of `Work.marks`, and payloads carry byte counts only.

Units: seconds, bytes, FLOP. A peer is named by a string; iteration over peers is always in sorted order.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeVar

from torch import Generator, Tensor, device

from shoal.errors import BadMessage

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
Peer = str
Key = tuple[Hashable, ...]
Lane = Literal["compute", "update", "serve", "to_device", "to_host"]


@dataclass(frozen=True, slots=True)
class Tag:
    """What a message is about. Structured, so that "older than step k" can be asked and dropped.

    `part` holds only ints and strings (and tuples of them): it crosses the wire.
    """

    kind: str
    step: int = 0
    part: Key = ()


@dataclass(frozen=True, slots=True)
class Payload:
    """Tensors on their way. `nbytes` is what they cost on the wire; `tensors` is empty in timing mode.

    `codec` describes the encoding, so that a sender may change it at any message.
    """

    tensors: tuple[Tensor, ...]
    nbytes: int
    codec: str = "dense"


def dense(*tensors: Tensor) -> Payload:
    """The payload that carries `tensors` as they are."""
    return Payload(tensors, sum(t.numel() * t.element_size() for t in tensors))


def only_bytes(nbytes: int, codec: str = "dense") -> Payload:
    """A payload without values, for timing mode."""
    return Payload((), nbytes, codec)


@dataclass(frozen=True, slots=True)
class Message:
    source: Peer
    tag: Tag
    body: Payload

    def one(self, like: Tensor, *, finite: bool = True) -> Tensor:
        """The message's single tensor, checked against `like`: same shape and dtype and, unless told otherwise, finite.

        Raises:
            BadMessage: names the peer, the step and what differs.
        """
        if len(self.body.tensors) != 1:
            raise BadMessage(
                self.source, self.tag.step, f"{self.tag.kind}: {len(self.body.tensors)} tensors, expected 1"
            )
        got = self.body.tensors[0]
        if got.shape != like.shape or got.dtype != like.dtype:
            is_, should = f"{tuple(got.shape)} {got.dtype}", f"{tuple(like.shape)} {like.dtype}"
            raise BadMessage(
                self.source, self.tag.step, f"{self.tag.kind}{self.tag.part}: got {is_}, expected {should}"
            )
        if finite and not _finite(got):
            raise BadMessage(self.source, self.tag.step, f"{self.tag.kind}{self.tag.part}: not finite")
        return got


def _finite(x: Tensor) -> bool:
    """Are all elements finite? A finite sum proves it and takes a tenth of the time of looking at each; a sum that is
    not may have overflowed."""
    return bool(x.sum().isfinite()) or bool(x.isfinite().all())


@dataclass(frozen=True, slots=True)
class Work:
    """What a computation costs and how it is named.

    Args:
        label: name of the span in the timeline (``"forward"``, ``"update"``).
        flops: floating-point operations.
        touched_bytes: bytes read and written in the device's memory.
        lane: computations on one lane of one peer run one after another, in order; different lanes overlap.
        marks: for `World.reach`: key → share of the computation's interval after which the key is reached.
        seed: seeds the device's default generators before the computation, together with the world's job seed;
            ``()`` leaves them alone. Must name everything that the draw may depend on (peer, step, micro-batch).
    """

    label: str
    flops: float = 0.0
    touched_bytes: float = 0.0
    lane: Lane = "compute"
    marks: Mapping[Hashable, float] = field(default_factory=dict)
    seed: Key = ()


@dataclass(frozen=True, slots=True)
class Link:
    """What is known of the way to a peer: predicted at first, measured later."""

    latency_s: float
    bandwidth_bytes_per_s: float


@dataclass(frozen=True, slots=True)
class Owners:
    """Who holds a block. `peers` is sorted; `island` says which island each peer is on; `epoch` counts regroupings."""

    epoch: int
    peers: tuple[Peer, ...]
    servers: tuple[Peer, ...] = ()
    island: Mapping[Peer, int] = field(default_factory=dict)


class Task(Protocol[T_co]):
    """What `World.spawn` hands out. Awaiting it gives the coroutine's result; both worlds return an `asyncio.Task`."""

    def __await__(self) -> Any: ...
    def cancel(self) -> bool: ...
    def done(self) -> bool: ...
    def result(self) -> T_co: ...


class World(Protocol):
    """The outside, seen by one peer."""

    @property
    def me(self) -> Peer: ...
    @property
    def peers(self) -> tuple[Peer, ...]:
        """All peers of the run, me included, sorted."""
        ...

    @property
    def device(self) -> device:
        """Where this peer computes."""
        ...

    @property
    def numeric(self) -> bool:
        """False in timing mode: tensors have no values, computations are not executed."""
        ...

    @property
    def sent_bytes(self) -> int:
        """Payload bytes of all messages whose sending has begun."""
        ...

    @property
    def received_bytes(self) -> int: ...

    def now(self) -> float:
        """Seconds since the run began (a clock that never goes back)."""
        ...

    async def sleep(self, seconds: float) -> None: ...

    async def send(self, to: Peer, tag: Tag, body: Payload, *, priority: int = 0) -> None:
        """Send; returns when `body`'s tensors may be written again, which may be before the peer has taken them.

        Raises:
            PeerLost: the peer is gone.
        """
        ...

    async def recv(self, tag: Tag, *, source: Peer, within: float | None = None) -> Message:
        """Take the next message from `source` with exactly this tag.

        Args:
            within: seconds to wait; None means the job's own deadline. There is no endless wait.

        Raises:
            PeerLost: `source` is gone and no such message had arrived.
            Late: `source` lives, but the deadline passed.
        """
        ...

    async def recv_any(
        self, kind: str, *, match: Callable[[Message], bool] | None = None, within: float | None = None
    ) -> Message:
        """Take the message of this kind (and for which `match` holds) that arrived first. The choice is logged."""
        ...

    def inbox(self, kind: str) -> Sequence[Message]:
        """The messages of this kind that have arrived and were not taken, in order of arrival."""
        ...

    def discard(self, kind: str, *, before_step: int) -> int:
        """Drop arrived messages of this kind with an older step; returns how many."""
        ...

    async def run(self, fn: Callable[[], T], work: Work, *, timing: T | None = None) -> T:
        """Run the computation `fn` on `work.lane`. `timing` is its result where tensors have no values."""
        ...

    def reach(self, fn: Callable[[Callable[[Hashable], None]], Any], work: Work) -> AsyncIterator[Hashable]:
        """Run the computation `fn(mark)` and yield each key when `fn` marks it, so communication can start during it.

        The iterator ends when `fn` has returned. An exception of `fn` is raised from the iterator.
        """
        ...

    async def collective(
        self, op: Literal["sum"], x: Tensor, peers: Sequence[Peer], tag: Tag, *, nbytes: int | None = None
    ) -> None:
        """Reduce `x` over `peers` (me included) in place; `x` is borrowed until this returns.

        The default is a ring of messages, whose order of additions fixes the bits; a virtual world computes the same
        bits in one go, and a process world may be told to use the engine's own collective.

        Args:
            nbytes: what `x` costs on the wire; needed in timing mode, where `x` may be a meta tensor.
        """
        ...

    def spawn(self, coro: Coroutine[Any, Any, T], name: str) -> Task[T]:
        """Run `coro` beside the caller. Its failure fails the worker at once: nothing is fire-and-forget."""
        ...

    def rng(self, *key: Hashable) -> Generator:
        """A CPU generator seeded by the job's seed and `key`: the same key gives the same numbers in every world."""
        ...

    def link(self, to: Peer) -> Link: ...

    def event(self, kind: str, **fields: Any) -> None:
        """Write to the event log: decisions, steps, arrival order. Enough to replay the run."""
        ...
