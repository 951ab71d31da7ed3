"""Real processes for tests of the process world: started once, then given one program after another.

Importing torch takes seconds, so a `Crowd` keeps its processes; every launch is a whole run (rendezvous, connections,
program, goodbye) in them, and tells what it left behind.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from shoal.trace import Event, Trace
from shoal.world import Peer
from shoal.worlds.rendezvous import keep_store

PATIENCE = 90.0
"""Seconds in which every launch must have ended, whatever happens in it."""

SETTINGS: dict[str, Any] = {"seed": 1234, "peer_deadline": 10.0, "wait_deadline": 20.0, "start_deadline": 30.0}


RUNNING = b"running"


@dataclass(frozen=True, slots=True)
class Left:
    """What a process has that a run might leave behind."""

    threads: tuple[str, ...]
    files: int
    listening: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Ending:
    """How one peer's launch ended: a value or an error, its event log, and what its process had before and after."""

    value: Any = None
    error: BaseException | None = None
    trace: str = ""
    events: tuple[Event, ...] = ()
    before: Left | None = None
    after: Left | None = None


@dataclass(slots=True)
class _Member:
    process: Any
    pipe: Connection


class Crowd:
    """Processes that can be killed, stopped and replaced."""

    def __init__(self) -> None:
        self._members: list[_Member] = []
        self._context = multiprocessing.get_context("spawn")

    def begin(self, program: Callable[..., Any], names: Sequence[Peer], **settings: Any) -> Launch:
        """Start ``program(world)`` on one process per name; `settings` are those of `run_process`."""
        while len(self._members) < len(names):
            self._members.append(self._member())
        members = dict(zip(names, self._members, strict=False))
        return Launch(self, members, program, {**SETTINGS, **settings})

    def run(self, program: Callable[..., Any], names: Sequence[Peer], **settings: Any) -> dict[Peer, Ending]:
        with self.begin(program, names, **settings) as launch:
            return launch.wait()

    def replace(self, member: _Member) -> None:
        """Put a process in the place of one that is dead or stuck."""
        member.process.kill()
        member.process.join()
        member.pipe.close()
        self._members.remove(member)

    def close(self) -> None:
        for member in list(self._members):
            self.replace(member)

    def _member(self) -> _Member:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=_serve, args=(theirs,), daemon=True)
        process.start()
        theirs.close()
        return _Member(process, ours)


class Launch:
    """One run, while it goes on."""

    def __init__(
        self, crowd: Crowd, members: dict[Peer, _Member], program: Callable[..., Any], settings: dict[str, Any]
    ) -> None:
        self._crowd, self._members, self._program, self._settings = crowd, members, program, settings
        self._store = keep_store()

    def __enter__(self) -> Launch:
        names = sorted(self._members)
        absent = self._settings.pop("absent", ())
        coordinator = self._store.__enter__()
        for peer, member in self._members.items():
            if peer not in absent:
                job = (self._program, {**self._settings, "me": peer, "peers": names, "coordinator": coordinator})
                member.pipe.send_bytes(pickle.dumps(job))
        self._members = {peer: member for peer, member in self._members.items() if peer not in absent}
        return self

    def __exit__(self, *_: object) -> None:
        self._store.__exit__(None, None, None)

    def pid(self, peer: Peer) -> int:
        return self._members[peer].process.pid

    def signal(self, peer: Peer, number: int) -> None:
        os.kill(self.pid(peer), number)

    def until_running(self) -> None:
        """Wait until every peer's program has told an event ``running``."""
        for peer, member in self._members.items():
            assert member.pipe.poll(PATIENCE), f"{peer!r} does not get going"
            said = member.pipe.recv_bytes()
            assert said == RUNNING, pickle.loads(said)

    def wait(self, peers: Sequence[Peer] | None = None) -> dict[Peer, Ending]:
        """How `peers` (all by default) ended; one that died without a word has no entry."""
        endings: dict[Peer, Ending] = {}
        for peer in peers if peers is not None else sorted(self._members):
            member = self._members[peer]
            try:
                if not member.pipe.poll(PATIENCE):
                    raise TimeoutError(f"{peer!r} has not ended within {PATIENCE:g} s")
                endings[peer] = pickle.loads(member.pipe.recv_bytes())
            except (EOFError, ConnectionError):
                self._crowd.replace(member)
            except TimeoutError:
                self._crowd.close()
                raise
        return endings

    def dismiss(self, peer: Peer) -> int | None:
        """Let `peer`'s process end by itself; returns its exit status, None if it does not end."""
        member = self._members[peer]
        member.pipe.send_bytes(pickle.dumps(None))
        member.process.join(PATIENCE)
        status = member.process.exitcode
        self.discard(peer)
        return status

    def discard(self, peer: Peer) -> None:
        """Kill `peer`'s process for good."""
        self._crowd.replace(self._members.pop(peer))


def left() -> Left:
    gc.collect()
    return Left(
        threads=tuple(sorted(thread.name for thread in threading.enumerate())),
        files=len(os.listdir("/proc/self/fd")),
        listening=tuple(sorted(_listening())),
    )


def _listening() -> set[str]:
    """Addresses on which this very process listens."""
    mine = set()
    for link in Path("/proc/self/fd").iterdir():
        try:
            mine.add(os.readlink(link))
        except OSError:
            continue
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text(encoding="ascii").splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in mine:
                found.add(fields[1])
    return found


def _serve(pipe: Connection) -> None:
    """A member's life: one launch after another."""
    from shoal.worlds.process import run_process

    before = left()
    while True:
        try:
            job = pickle.loads(pipe.recv_bytes())
        except (EOFError, OSError):
            return
        if job is None:
            return
        program, settings = job
        events: list[Event] = []

        def on_event(event: Event, events: list[Event] = events) -> None:
            events.append(event)
            if event.kind == "running":
                pipe.send_bytes(RUNNING)

        try:
            value, error, text = run_process(program, trace=Trace(on_event=on_event), **settings), None, ""
        except BaseException as raised:
            value, error, text = None, raised, traceback.format_exc()
        ending = Ending(value, error, text, tuple(events), before, left())
        try:
            pipe.send_bytes(pickle.dumps(ending))
        except (TypeError, AttributeError, pickle.PicklingError) as unfit:
            pipe.send_bytes(pickle.dumps(Ending(error=RuntimeError(f"{unfit!r} about {value!r} {error!r}"))))
