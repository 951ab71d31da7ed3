"""How the processes of one run find one another: a key-value store that all know, and addresses that all can reach.

The store is torch's `TCPStore`, at ``MASTER_ADDR:MASTER_PORT`` as torchrun, Slurm scripts and Shoal's own launcher set
them. It is kept by the launcher if there is one (``TORCHELASTIC_USE_AGENT_STORE``), else by the first peer.

A peer offers the address of its route to the store, whatever its host name resolves to. ``SHOAL_INTERFACE`` (an
interface's name, or one of this machine's addresses) and ``SHOAL_PORT_RANGE`` (``40000-40050``) overrule that.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

from torch.distributed import DistError

from shoal.errors import BadMessage, PeerLost, ShoalError, UserError
from shoal.transport import Hello, refusal
from shoal.transport.engines import HashStore, PrefixStore, Store, TCPStore, brief
from shoal.transport.greeting import reason
from shoal.transport.lane import Lane
from shoal.world import Peer
from shoal.worlds import process_addresses as addresses

T = TypeVar("T")

_FIRST_PAUSE, _LONGEST_PAUSE = 0.005, 0.25
_CONNECT_SECONDS = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Coordinator:
    """Where the store is.

    Args:
        host: a name or an address; IPv6 addresses without brackets.
        kept: somebody who is not a peer keeps the store (a launcher); otherwise the first peer does.
        attempt: distinguishes runs that use one store one after another.
    """

    host: str
    port: int
    kept: bool = False
    attempt: str = ""

    def environment(self) -> dict[str, str]:
        """The variables from which `from_environment` reads this; for child processes."""
        return {
            "MASTER_ADDR": self.host,
            "MASTER_PORT": str(self.port),
            "TORCHELASTIC_USE_AGENT_STORE": str(self.kept),
            "TORCHELASTIC_RUN_ID": self.attempt,
        }

    def __str__(self) -> str:
        return addresses.spoken(self.host, self.port)


def from_environment(env: Mapping[str, str] = os.environ) -> Coordinator:
    """The coordinator as torchrun, a Slurm script or Shoal's launcher wrote it into the environment.

    Raises:
        UserError: ``MASTER_ADDR`` or ``MASTER_PORT`` is missing or cannot be used.
    """
    host, port = env.get("MASTER_ADDR", "").strip(), env.get("MASTER_PORT", "").strip()
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    if not host:
        raise UserError(
            "not set",
            key="MASTER_ADDR",
            mend="start workers with shoal train or torchrun, or set it to the first peer's address",
        )
    if not port.isdigit() or not 0 < int(port) < 65536:
        raise UserError("not a port", key="MASTER_PORT", value=port, mend="write a number from 1 to 65535")
    attempt = "/".join(env.get(name, "") for name in ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"))
    kept = env.get("TORCHELASTIC_USE_AGENT_STORE", "").lower() == "true"
    return Coordinator(host=host, port=int(port), kept=kept, attempt=attempt.strip("/"))


@contextmanager
def keep_store(host: str = "127.0.0.1", port: int = 0) -> Iterator[Coordinator]:
    """Keep a store for the workers that this process starts. Port 0 takes a free one.

    Raises:
        UserError: the port is taken; says by whom.
    """
    store = _serve(host, port, 60.0)
    try:
        yield Coordinator(host=host, port=store.port, kept=True, attempt=secrets.token_hex(4))
    finally:
        del store


async def meet(
    coordinator: Coordinator | None, *, me: Peer, peers: Sequence[Peer], digest: str = "", deadline: float = 60.0
) -> Rendezvous:
    """Find the store and, through it, all other peers of the run.

    Args:
        coordinator: None in a run of one peer, which has nobody to find.
        digest: of the plan that this peer was handed; peers with another one refuse each other.
        deadline: seconds for the whole start.

    Raises:
        PeerLost: peers are missing at the deadline (names them), or the peer that keeps the store does not answer.
        BadMessage: a peer was handed another plan, or has another version of Shoal.
        UserError: a setting cannot be used, a port is taken, or another process already is this peer.
    """
    until = asyncio.get_running_loop().time() + deadline
    allowed = addresses.port_range(os.environ.get(addresses.PORT_RANGE))
    store: Store = HashStore()
    host, where = "127.0.0.1", "the store"
    if coordinator is not None:
        store, host = await _find(coordinator, me, min(peers), allowed, deadline)
        where = str(coordinator)
    found = Rendezvous(store, me=me, peers=peers, host=host, where=where, deadline=deadline, until=until, ports=allowed)
    del store  # kept by `found` alone, which lets go of it
    return await found.join(digest)


async def _find(
    coordinator: Coordinator, me: Peer, first: Peer, allowed: range | None, deadline: float
) -> tuple[Store, str]:
    """This run's corner of the store, and this machine's address as the others reach it."""
    lane = Lane("find the store")
    try:
        keeper = None if coordinator.kept else first
        store: TCPStore | None = None
        if keeper == me:
            if allowed is not None and coordinator.port not in allowed:
                mend = f"let {addresses.PORT_RANGE} include it, or choose another"
                raise UserError("outside the allowed ports", key="MASTER_PORT", value=coordinator.port, mend=mend)
            store = await lane.submit(partial(_serve, coordinator.host, coordinator.port, deadline))
        route = await _reach(coordinator, keeper, lane, deadline)
        host = addresses.offered_host(route, os.environ.get(addresses.INTERFACE))
        known = store or await lane.submit(partial(_connect, coordinator, deadline))
        return PrefixStore(f"shoal/{coordinator.attempt}", known), host
    finally:
        store = None  # the traceback of an error does not keep it alive
        lane.finish()
        lane.join(1.0)


class Rendezvous:
    """The peers of one run; a `shoal.transport.Meeting`. Made by `meet`, ended by `close`.

    Args:
        store: this run's own corner of a store.
        host: this machine's address, as the others reach it.
        where: the store's address, for errors.
        deadline: seconds for the whole start, which ends at `until` of the loop's clock.
        ports: those on which listening is allowed; None for all.
    """

    hello: Hello

    def __init__(
        self,
        store: Store,
        *,
        me: Peer,
        peers: Sequence[Peer],
        host: str,
        where: str = "the store",
        deadline: float = 60.0,
        until: float | None = None,
        ports: range | None = None,
    ) -> None:
        self.store, self.peers, self.host, self.deadline = store, tuple(sorted(peers)), host, deadline
        self._me, self._where, self._ports, self._neighbours = me, where, ports, 1
        self._until = asyncio.get_running_loop().time() + deadline if until is None else until
        self._lane = Lane("rendezvous")

    async def join(self, digest: str = "") -> Rendezvous:
        """Claim my name, and wait for everybody else. Closes itself if that fails, which it may as `meet` does."""
        try:
            await self._join(digest)
        except BaseException:
            self.close()
            raise
        return self

    async def exchange(self, topic: str, mine: str) -> dict[Peer, str]:
        """Tell everybody `mine` under `topic`, and return what each peer told.

        Raises:
            PeerLost: peers are missing at the deadline; names them.
        """
        loop = asyncio.get_running_loop()
        keys = [f"{topic}/{peer}" for peer in self.peers]
        await self._ask(partial(self.store.set, f"{topic}/{self._me}", mine))
        pause = _FIRST_PAUSE
        while not await self._ask(partial(self.store.check, keys)):
            if loop.time() > self._until:
                there = [await self._ask(partial(self.store.check, [key])) for key in keys]
                missing = [peer for peer, is_there in zip(self.peers, there, strict=True) if not is_there]
                raise self._absent(missing or [self.peers[-1]])
            await asyncio.sleep(pause)
            pause = min(1.5 * pause, _LONGEST_PAUSE)
        told = await self._ask(partial(self.store.multi_get, keys))
        return {peer: value.decode() for peer, value in zip(self.peers, told, strict=True)}

    def listen(self) -> socket.socket:
        return addresses.listen(self.host, self._ports, needed=self._neighbours)

    def refuse_port_range(self, who: str) -> None:
        if self._ports is not None:
            raise UserError(
                f"{who} chooses its ports itself",
                key=addresses.PORT_RANGE,
                value=os.environ.get(addresses.PORT_RANGE),
                mend='use run.transport = "streams" and run.collective = "ring", or allow all ports',
            )

    def close(self) -> None:
        """Let go of the store."""
        self._lane.finish()
        self._lane.join(1.0)
        vars(self).pop("store", None)

    async def _join(self, digest: str) -> None:
        run = await self._settle("run", secrets.token_hex(16))
        self.hello = Hello(run=run, peer=self._me, digest=digest)
        listed = json.loads(await self._settle("peers", json.dumps(self.peers)))
        if tuple(listed) != self.peers:
            raise UserError(
                f"the run at {self._where} is one of {', '.join(listed)}",
                value=list(self.peers),
                mend="start all peers from the same cluster file, or give this run another MASTER_PORT",
            )
        claim = f"process {os.getpid()} on {socket.gethostname()} ({secrets.token_hex(4)})"
        owner = await self._settle(f"claim/{self._me}", claim)
        if owner != claim:
            raise UserError(
                f"{owner.rpartition(' ')[0]} already is peer {self._me!r} of the run at {self._where}",
                mend="start every peer once, or give this run another MASTER_PORT",
            )
        about = {"hello": asdict(self.hello), "host": self.host, "machine": addresses.machine_name()}
        told = await self.exchange("who", json.dumps(about))
        self._check({peer: json.loads(text) for peer, text in told.items()})

    def _check(self, told: Mapping[Peer, dict[str, Any]]) -> None:
        """Are all of one plan and version, and can everybody reach everybody?"""
        mine = told[self._me]
        self._neighbours = sum(about["machine"] == mine["machine"] for about in told.values())
        for peer, about in told.items():
            if why := refusal(self.hello, Hello(**about["hello"])):
                raise BadMessage(peer, 0, why)
            alone = all(other["machine"] == about["machine"] for other in told.values())
            if addresses.is_loopback(about["host"]) and not alone:
                raise UserError(
                    f"peer {peer!r} offers {about['host']}, which no other machine can reach",
                    mend=f"on its machine, set {addresses.INTERFACE} to the interface that the others can reach, "
                    "or MASTER_ADDR everywhere to an address that is no loopback address",
                )
            if addresses.family(about["host"]) != addresses.family(self.host):
                raise UserError(
                    f"{peer!r} offers {about['host']}, {self._me!r} {self.host}: IPv4 and IPv6 do not reach each other",
                    mend=f"write MASTER_ADDR as an address of one family, or set {addresses.INTERFACE} to such a one",
                )

    def _absent(self, missing: Sequence[Peer]) -> PeerLost:
        also = f"; missing are {', '.join(missing)} of {', '.join(self.peers)}" if len(missing) > 1 else ""
        return PeerLost(missing[0], 0, f"did not come to {self._where} within {self.deadline:g} s{also}")

    async def _settle(self, key: str, mine: str) -> str:
        """The value of `key`, which is `mine` if nobody has set it before."""
        return (await self._ask(partial(self.store.compare_set, key, "", mine))).decode()

    async def _ask(self, question: Callable[[], T]) -> T:
        try:
            return await self._lane.submit(question)
        except DistError as error:
            raise ShoalError(f"the store at {self._where} does not answer any more: {brief(error)}") from None


def _serve(host: str, port: int, deadline: float) -> TCPStore:
    try:
        return TCPStore(host, port, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=deadline))
    except DistError as error:
        if "EADDRINUSE" not in str(error):
            raise ShoalError(f"cannot keep a store at {addresses.spoken(host, port)}: {brief(error)}") from None
        raise UserError(
            f"taken by {addresses.port_owner(port)}",
            key="MASTER_PORT",
            value=port,
            mend="is another run going on here? Choose another port, or end it",
        ) from None


def _connect(coordinator: Coordinator, deadline: float) -> TCPStore:
    try:
        wait = timedelta(seconds=deadline)
        return TCPStore(coordinator.host, coordinator.port, is_master=False, wait_for_workers=False, timeout=wait)
    except DistError as error:
        raise ShoalError(f"what answers at {coordinator} is no store: {brief(error)}") from None


async def _reach(coordinator: Coordinator, keeper: Peer | None, lane: Lane, deadline: float) -> str:
    """My address on the way to the store. Tries, until it is there, every address that the coordinator's name has."""
    loop = asyncio.get_running_loop()
    until, pause = loop.time() + deadline, _FIRST_PAUSE
    while True:
        reasons: dict[str, str] = {}
        try:
            found = await lane.submit(
                partial(socket.getaddrinfo, coordinator.host, coordinator.port, type=socket.SOCK_STREAM)
            )
        except OSError as error:
            found, reasons[coordinator.host] = [], error.strerror or str(error)
        for kind, *_, where in found:
            with socket.socket(kind, socket.SOCK_STREAM) as sock:
                sock.setblocking(False)
                try:
                    async with asyncio.timeout(_CONNECT_SECONDS):
                        await loop.sock_connect(sock, where)
                    return sock.getsockname()[0]
                except OSError as error:
                    reasons[str(where[0])] = reason(error)
        if loop.time() + pause > until:
            break
        await asyncio.sleep(pause)
        pause = min(1.5 * pause, _LONGEST_PAUSE)
    said = ", ".join(f"{address}: {why}" for address, why in reasons.items())
    if keeper is None:
        raise UserError(
            f"nothing answered within {deadline:g} s ({said})",
            key="MASTER_ADDR, MASTER_PORT",
            value=str(coordinator),
            mend="is whoever started this worker still alive, and is the address reachable from here?",
        )
    raise PeerLost(keeper, 0, f"keeps the store, but nothing answered at {coordinator} within {deadline:g} s ({said})")
