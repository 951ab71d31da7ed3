"""Messages on their way through the virtual network, from a sender's tensors to the other's inbox."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from random import Random

from torch import Tensor

from shoal.cluster import Cluster
from shoal.errors import Race
from shoal.network import FluidNetwork, Watcher
from shoal.network.jitter import jittered
from shoal.trace import Span, Trace
from shoal.world import Message, Peer, Tag
from shoal.worlds.clock import VirtualLoop
from shoal.worlds.faults import Delay, Sleep
from shoal.worlds.inbox import Inbox
from shoal.worlds.seeds import derive


class Address:
    """One peer as the post knows it."""

    __slots__ = ("gone", "inbox", "last_arrival", "peer", "received_bytes", "sent_bytes", "sleep", "trace", "underway")

    def __init__(self, peer: Peer, inbox: Inbox, trace: Trace, sleep: Sleep) -> None:
        self.peer, self.inbox, self.trace, self.sleep = peer, inbox, trace, sleep
        self.sent_bytes = self.received_bytes = 0
        self.last_arrival = 0.0  # of what this peer has sent, as far as is known
        self.underway: dict[int, Transfer] = {}  # from this peer, last byte not yet gone
        self.gone = False


class Transfer:
    """A message from its first byte's leaving until it is in the inbox. It carries snapshots of what was borrowed."""

    __slots__ = (
        "arrived",
        "borrowed",
        "cut",
        "done",
        "follower",
        "message",
        "source",
        "start",
        "target",
        "versions",
        "waits",
    )

    def __init__(
        self,
        source: Address,
        target: Address,
        message: Message,
        borrowed: tuple[Tensor, ...],
        done: asyncio.Future[None],
    ) -> None:
        self.source, self.target, self.message, self.done = source, target, message, done
        self.borrowed = borrowed
        self.versions = [version(tensor) for tensor in borrowed]
        self.start = 0.0
        self.arrived = self.cut = False
        self.waits = False  # for an earlier one with the same tag, which must be in the inbox first
        self.follower: Transfer | None = None

    def free(self) -> None:
        """The sender may write again."""
        if not self.done.done():
            self.done.set_result(None)

    def fail(self, error: Exception) -> None:
        if not self.done.done():
            self.done.set_exception(error)


def version(tensor: Tensor) -> int:
    """Counts the writes to `tensor` and everything that shares its memory by being a view of one tensor.

    Tensors made in inference mode do not count.
    """
    return 0 if tensor.is_inference() else tensor._version


class Post:
    """Carries messages between addresses over the cluster's network, on the loop's clock.

    Messages of one sender with the same tag arrive in the order of sending; others may overtake each other.
    """

    def __init__(
        self, loop: VirtualLoop, cluster: Cluster, delays: Sequence[Delay] = (), *, network_seed: int = 0
    ) -> None:
        self.network = FluidNetwork(cluster)
        self._loop, self._delays, self._seed = loop, delays, network_seed
        self._moods: dict[tuple[Peer, Peer], Random] = {}  # of links with jitter
        self._number = 0
        self._ended: dict[int, Callable[[int], None]] = {}  # what to do when a flow ends
        self._transfers: dict[int, Transfer] = {}
        self._latest: dict[tuple[Peer, Peer, Tag], Transfer] = {}  # not yet in the inbox
        self._random: dict[Peer, list[Random]] = {}
        loop.source = self

    def send(self, transfer: Transfer) -> None:
        """Start `transfer`; its `done` is set when the last byte has left, or fails with `Race` or `PeerLost`."""
        source, target, message = transfer.source, transfer.target, transfer.message
        key = source.peer, target.peer, message.tag
        earlier = self._latest.get(key)
        if earlier is not None:
            earlier.follower = transfer
            transfer.waits = True
        self._latest[key] = transfer
        transfer.start = self._loop.time()
        source.sent_bytes += message.body.nbytes
        number = self.flow(source.peer, target.peer, message.body.nbytes)
        self._transfers[number] = transfer
        source.underway[number] = transfer

    def flow(
        self,
        src: Peer,
        dst: Peer,
        nbytes: float,
        *,
        watcher: Watcher | None = None,
        ended: Callable[[int], None] | None = None,
    ) -> int:
        """Start a bare flow and return its number; `watcher` is told its rates, `ended` that it has ended."""
        self._number += 1
        if ended is not None:
            self._ended[self._number] = ended
        self.network.start(self._number, src, dst, nbytes, self._loop.time(), watcher)
        return self._number

    def break_off(self, flows: Iterable[int]) -> list[Transfer]:
        """End these flows without delivering anything; returns the transfers among them."""
        flows = list(flows)
        self.network.cancel(flows, self._loop.time())
        cut = []
        for number in flows:
            self._ended.pop(number, None)
            transfer = self._transfers.pop(number, None)
            if transfer is not None:
                del transfer.source.underway[number]
                transfer.cut = True
                cut.append(transfer)
                self._arrive(transfer)
        return cut

    def cut_off(self, address: Address) -> list[Transfer]:
        """`address` has died: what it is sending is lost, and what is being sent to it, which is returned."""
        address.gone = True
        self.break_off(address.underway)
        return self.break_off([number for number, transfer in self._transfers.items() if transfer.target is address])

    # What the loop asks of a source of events.

    def next_time(self) -> float:
        return self.network.next_completion()

    def happen(self, now: float) -> None:
        for number in self.network.advance(now):
            transfer = self._transfers.pop(number, None)
            if transfer is not None:
                del transfer.source.underway[number]
                self._left(transfer, now)
            elif number in self._ended:
                self._ended.pop(number)(number)

    # ---------------------------------------------------------------------------------------------- transfers

    def _left(self, transfer: Transfer, now: float) -> None:
        """The last byte has left: the sender may write again, and the message arrives after the latency."""
        source, target, message = transfer.source, transfer.target, transfer.message
        tag, nbytes = message.tag, message.body.nbytes
        args = {"to": target.peer, "step": tag.step, "bytes": nbytes}
        source.trace.span(Span(source.peer, "send", tag.kind, transfer.start, now, args))
        if [version(tensor) for tensor in transfer.borrowed] != transfer.versions:
            transfer.fail(_race(transfer, now))
        transfer.borrowed = ()
        awake = source.sleep.awake(now)
        if awake > now:
            self._loop.at(awake, Transfer.free, transfer)
        else:
            transfer.free()
        arrival = now + self._latency(source.peer, target.peer) + self._extra(source.peer)
        arrival = target.sleep.awake(arrival)
        source.last_arrival = max(source.last_arrival, arrival)
        if arrival > now:
            self._loop.at(arrival, self._arrive, transfer)
        else:
            self._arrive(transfer)

    def _latency(self, src: Peer, dst: Peer) -> float:
        """Of the next message on this way."""
        latency, jitter = self.network.latency(src, dst), self.network.jitter(src, dst)
        if not jitter:
            return latency
        if (src, dst) not in self._moods:
            self._moods[src, dst] = Random(derive(self._seed, "jitter of links", src, dst))
        return jittered(latency, jitter, self._moods[src, dst].gauss(0.0, 1.0))

    def _extra(self, peer: Peer) -> float:
        """Seconds by which the planned delays hold up the next message of `peer`."""
        if not self._delays:
            return 0.0
        if peer not in self._random:
            self._random[peer] = [Random(derive(delay.seed, "delay", peer)) for delay in self._delays]
        return sum(r.uniform(0.0, d.seconds) for r, d in zip(self._random[peer], self._delays, strict=True))

    def _arrive(self, transfer: Transfer) -> None:
        """Put `transfer`, and those that wait behind it, into the inbox, unless it must wait itself."""
        transfer.arrived = True
        following: Transfer | None = transfer
        while following is not None and following.arrived and not following.waits:
            source, target, message = following.source, following.target, following.message
            key = source.peer, target.peer, message.tag
            if self._latest[key] is following:
                del self._latest[key]
            if not following.cut and not target.gone and target.inbox.lost(source.peer) is None:
                target.received_bytes += message.body.nbytes
                target.inbox.put(message)
            following = following.follower
            if following is not None:
                following.waits = False


def _race(transfer: Transfer, now: float) -> Race:
    tag, source, target = transfer.message.tag, transfer.source.peer, transfer.target.peer
    what, when = f"{tag.kind!r} {tag.part} of step {tag.step}", f"from {transfer.start:.6f} s to {now:.6f} s"
    return Race(
        f"{source!r} wrote to a tensor while it was being sent to {target!r} as {what} ({when}): "
        "await the send before writing"
    )
