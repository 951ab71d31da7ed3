"""The seam's signature, what peers say to each other first, and what a transport is handed to find the others."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from shoal.transport.engines import Store
from shoal.transport.frame import Frame
from shoal.world import Peer

VERSION = 1
"""Version of the wire. Peers of different versions refuse each other."""

OnFrame = Callable[[Peer, Frame], None]
OnLost = Callable[[Peer, str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """The first thing a peer says. `run` is the token of one run, `digest` that of the plan it was handed."""

    run: str
    peer: Peer
    digest: str = ""
    version: int = VERSION


def refusal(mine: Hello, theirs: Hello) -> str | None:
    """Why `theirs` cannot take part in my run; None if it can."""
    if theirs.run != mine.run:
        return "it belongs to another run"
    if theirs.version != mine.version:
        return f"it speaks version {theirs.version} of the wire, this peer {mine.version}; install one version of Shoal"
    if theirs.digest != mine.digest:
        return (
            f"it was handed plan {theirs.digest or '(none)'}, this peer plan {mine.digest or '(none)'}; "
            "start all peers from the same job, cluster and version of Shoal"
        )
    return None


class Meeting(Protocol):
    """Where the peers of one run find one another; handed to a transport by the world."""

    hello: Hello
    peers: tuple[Peer, ...]  # all of them, me included, sorted
    deadline: float  # seconds for the whole start
    host: str  # the address at which the others reach this machine
    store: Store  # this run's own corner of the store, for an engine's own rendezvous

    async def exchange(self, topic: str, mine: str) -> dict[Peer, str]:
        """Tell everybody `mine`, return what everybody told.

        Raises:
            PeerLost: some peer told nothing before the deadline; names all such peers.
        """
        ...

    def listen(self) -> socket.socket:
        """A listening, nonblocking TCP socket at `host`, inside the port range that a person allowed.

        Raises:
            UserError: no port of the range is free.
        """
        ...

    def refuse_port_range(self, who: str) -> None:
        """`who` chooses ports by itself.

        Raises:
            UserError: a person allowed only certain ports.
        """
        ...


class Transport(Protocol):
    """Moves frames between me and every other peer. All calls and callbacks are on one event loop.

    Frames from one peer arrive whole. Those of one priority arrive in the order in which they were sent; a higher
    priority overtakes what is still queued.
    """

    async def start(self, meeting: Meeting, *, on_frame: OnFrame, on_lost: OnLost, pin: bool = False) -> None:
        """Connect to all other peers.

        Args:
            on_frame: called with each frame that arrives.
            on_lost: called once per peer whose connection ends, whoever ended it, with the reason in words.
            pin: receive into page-locked memory, from which a GPU copies by itself.

        Raises:
            PeerLost: a peer could not be reached, or refused; names it and says why.
            UserError: an address or port setting cannot be used.
        """
        ...

    async def send(self, peer: Peer, frame: Frame, *, priority: int = 0) -> None:
        """Returns when the frame's tensors may be written again. Higher priorities leave first.

        A cancelled send of a frame that has not begun to leave is withdrawn; of one that has, cancellation waits.

        Raises:
            PeerLost: the connection ended.
        """
        ...

    def heard(self, peer: Peer) -> int:
        """Bytes received from `peer` so far: it grows while a large frame is arriving."""
        ...

    async def close(self, grace: float) -> None:
        """Send what is queued, end all connections and leave no thread, socket or port behind.

        Args:
            grace: seconds in which peers may take what was sent to them and end their side; 0 ends at once.
        """
        ...
