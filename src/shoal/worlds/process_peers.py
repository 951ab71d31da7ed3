"""Who of the other processes is alive, and how they learn that this one is, has finished or has failed.

A peer ends in one of three ways. It says goodbye when its program has returned: then only those who still wait for it
are disappointed. It says what went wrong, and where, when its program has failed. Or it ends without a word: its
connection closes at once if it was killed, and it stays silent if it hangs or its network is gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from typing import Protocol

from shoal.errors import Late, PeerError, PeerLost, ShoalError
from shoal.transport import Frame, Transport
from shoal.world import Peer, Tag

URGENT = 1_000_000
"""Priority of what worlds tell each other: it overtakes all payloads that wait."""

TICKS = 10
"""The deadline in which a silent peer is given up has so many ticks; a sign of life is sent on every second one."""

TEXT_LIMIT = 2000


class OnGone(Protocol):
    """`failed`: the peer did not end by finishing its program, so the run cannot go on as planned."""

    def __call__(self, peer: Peer, why: str, *, failed: bool) -> None: ...


class Peers:
    """Args:
    deadline: seconds after which a peer that is silent is given up.
    on_gone: called once for each peer that is gone.
    """

    def __init__(
        self, me: Peer, others: Iterable[Peer], transport: Transport, *, deadline: float, on_gone: OnGone
    ) -> None:
        self._me, self._transport, self._deadline, self._on_gone = me, transport, deadline, on_gone
        self._alive = dict.fromkeys(others)
        self._failed: set[Peer] = set()
        self._signs: dict[Peer, asyncio.Task[None]] = {}
        self._parting: list[asyncio.Task[None]] = []  # words to those that have failed

    @property
    def alive(self) -> list[Peer]:
        """Those that are neither finished nor lost."""
        return list(self._alive)

    def take(self, peer: Peer, frame: Frame) -> None:
        """A frame that is not a message of a protocol."""
        if frame.purpose == "bye":
            self.gone(peer, "has finished", failed=False)
        elif frame.purpose == "abort":
            said = [str(item) for item in frame.tag.part]
            culprit, why = said if len(said) == 2 else (peer, "has failed")
            if culprit in self._alive and culprit != peer:
                self.gone(culprit, f"{why} (says {peer!r})")
            if culprit in self._failed:
                self._alive.pop(peer, None)  # it stops because of the culprit, as this peer will: no news
            else:
                self.gone(peer, f"gave this peer up: {why}" if culprit == self._me else why)

    def gone(self, peer: Peer, why: str, *, failed: bool = True) -> None:
        if peer not in self._alive:
            return
        del self._alive[peer]
        if failed:
            self._failed.add(peer)
        self._on_gone(peer, why, failed=failed)

    async def watch(self) -> None:
        """Give signs of life, and give up those who show none. Runs until it is cancelled.

        Silence is counted in ticks of this process's own loop, so that one that was itself stopped or asleep for a
        while does not take all others for dead when it wakes. Bytes of a large message on their way count as signs.
        """
        heard = {peer: self._transport.heard(peer) for peer in self._alive}
        silent = dict.fromkeys(heard, 0)
        tick = 0
        try:
            while True:
                if tick % 2 == 0:
                    self._give_signs()
                await asyncio.sleep(self._deadline / TICKS)
                tick += 1
                for peer in self.alive:
                    now = self._transport.heard(peer)
                    silent[peer] = silent[peer] + 1 if now == heard[peer] else 0
                    heard[peer] = now
                    if silent[peer] >= TICKS - 1:
                        self.gone(peer, f"silent for {self._deadline:g} s")
        finally:
            for sign in self._signs.values():
                sign.cancel()
            self._signs.clear()

    def _give_signs(self) -> None:
        """One to each, unless the last one is still waiting for its turn behind a large message."""
        for peer in self._alive:
            if peer not in self._signs or self._signs[peer].done():
                sign = self._tell(peer, Frame(Tag("alive"), purpose="alive"))
                self._signs[peer] = asyncio.get_running_loop().create_task(sign, name=f"sign of life to {peer}")

    async def say_goodbye(self) -> None:
        """This peer's program has returned, and all that it sent has left."""
        await self._tell_all(self._alive, Frame(Tag("bye"), purpose="bye"), priority=-URGENT)

    async def say_failure(self, error: BaseException, step: int) -> None:
        """This peer's program has failed at `step`. If another peer is the cause, that one is named, and told too,
        without waiting for it: it may only have been asleep."""
        culprit, why = blame(error, self._me, step)
        frame = Frame(Tag("abort", step, (culprit, why[:TEXT_LIMIT])), purpose="abort")
        self._parting = [asyncio.get_running_loop().create_task(self._tell(peer, frame)) for peer in self._failed]
        await asyncio.sleep(0)  # they begin; the end of the transport ends them
        await self._tell_all(self._alive, frame, priority=URGENT)

    async def _tell_all(self, peers: Iterable[Peer], frame: Frame, *, priority: int) -> None:
        await asyncio.gather(*(self._tell(peer, frame, priority) for peer in peers))

    async def _tell(self, peer: Peer, frame: Frame, priority: int = URGENT) -> None:
        with suppress(PeerLost):  # the transport reports it itself
            await self._transport.send(peer, frame, priority=priority)


def blame(error: BaseException, me: Peer, step: int) -> tuple[Peer, str]:
    """Which peer is the cause of my `error` at `step`, and what it did. A peer that is merely late is not a culprit."""
    if isinstance(error, PeerError) and not isinstance(error, Late):
        return error.peer, error.why
    if isinstance(error, (asyncio.CancelledError, KeyboardInterrupt)):
        return me, f"was interrupted at step {step}"
    text = str(error) if isinstance(error, ShoalError) else f"{type(error).__name__}: {error}"
    return me, f"has failed at step {step}: {text}"
