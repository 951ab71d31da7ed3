"""Workers that somebody else has started: torchrun, a Slurm script, or anything that sets RANK and WORLD_SIZE.

Each process is the worker of the device with its rank's number, in the order of names. The first one prepares the run
and hands job, cluster and plan to the others through the store, so that all run the same even where their files differ,
and a run folder that machines do not share is complete on each of them.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from torch.distributed import DistError

from shoal import cluster as clusters
from shoal import job as jobs
from shoal.errors import PeerLost, ShoalError, UserError
from shoal.launch.messages import failure
from shoal.launch.prepare import Prepared, read, write_whole
from shoal.launch.processes import Ending
from shoal.launch.session import run_session, torch_device
from shoal.launch.signals import StopSignals
from shoal.transport.engines import PrefixStore, Store, TCPStore
from shoal.worker import Report, RunFolder
from shoal.worlds.rendezvous import Coordinator, from_environment, keep_store

START_SECONDS = 300.0
"""How long the processes of one run wait for one another to be started, the first one's planning included."""
READ_SECONDS = 30.0
"""How long the first process stays to tell the others that the run cannot be prepared."""
_RUN, _READ = "run", "read"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Which of the processes this one is. `local` counts those on this machine."""

    rank: int
    size: int
    local: int

    @property
    def leads(self) -> bool:
        return self.rank == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Team:
    """The run that all processes have agreed on, as one of them holds it."""

    place: Place
    prepared: Prepared
    coordinator: Coordinator
    session: str

    @property
    def peer(self) -> str:
        return self.prepared.plan.peers[self.place.rank]

    def work(self, tell: Callable[[Report], None] = lambda report: None) -> Ending:
        """Be this process's worker until the run ends. INT, TERM and HUP ask all workers to stop after one step."""
        with StopSignals() as signals:
            try:
                outcome = run_session(
                    self.prepared,
                    self.peer,
                    coordinator=self.coordinator,
                    session=self.session,
                    device=torch_device(self.prepared, self.peer, number=self.place.local),
                    tell=tell,
                    should_stop=lambda: signals.asked,
                )
            except Exception as error:
                if not isinstance(error, ShoalError):
                    traceback.print_exc()
                return Ending(outcomes={}, failures=(failure(self.peer, error),), signal=signals.first)
        return Ending(outcomes={self.peer: outcome}, signal=signals.first)


def place(environment: Mapping[str, str] = os.environ) -> Place | None:
    """This process's place, if RANK and WORLD_SIZE say that there are others.

    Raises:
        UserError: they are no numbers, or do not fit each other.
    """
    if not ("RANK" in environment and "WORLD_SIZE" in environment):
        return None
    local = next((key for key in ("LOCAL_RANK", "SLURM_LOCALID") if key in environment), "RANK")
    numbers = {}
    for key in ("RANK", "WORLD_SIZE", local):
        text = environment[key]
        if not text.isdigit():
            raise UserError("not a number", key=key, value=text, mend="start the workers with torchrun, or unset it")
        numbers[key] = int(text)
    if numbers["RANK"] >= numbers["WORLD_SIZE"]:
        mend = f"ranks go from 0 to WORLD_SIZE - 1, which is {numbers['WORLD_SIZE'] - 1}"
        raise UserError("no such rank", key="RANK", value=numbers["RANK"], mend=mend)
    return Place(rank=numbers["RANK"], size=numbers["WORLD_SIZE"], local=numbers[local])


@contextmanager
def assemble(here: Place, make: Callable[[], Prepared]) -> Iterator[Team]:
    """Agree with the other processes on the run. While it is entered, the first process keeps the store if nobody else
    does.

    Args:
        make: prepares the run; called by the first process only.

    Raises:
        UserError: the run cannot be prepared.
        PeerLost: the first process does not answer.
    """
    where = from_environment()
    with ExitStack() as stack:
        if here.leads and not where.kept:
            stack.enter_context(keep_store(where.host, where.port))
        try:
            store = PrefixStore(f"shoal-launch/{where.attempt}", _connect(where))
            told = _tell(store, make) if here.leads else _ask(store)
            if "failure" in told and here.leads:
                _await_readers(store, here.size - 1)
        except DistError as error:
            why = f"did not prepare the run within {START_SECONDS:g} s at {where}"
            raise PeerLost("rank 0", 0, why) from error
        if "failure" in told:
            raise UserError(f"the run cannot be prepared: {told['failure']}")
        coordinator = replace(where, kept=True, attempt=told["session"])
        yield Team(place=here, prepared=_receive(told), coordinator=coordinator, session=told["session"])


def _connect(where: Coordinator) -> TCPStore:
    wait = timedelta(seconds=START_SECONDS)
    return TCPStore(where.host, where.port, is_master=False, wait_for_workers=False, timeout=wait)


def _tell(store: Store, make: Callable[[], Prepared]) -> dict[str, Any]:
    """Prepare the run and tell the others, who learn of a failure, too, instead of waiting."""
    told: dict[str, Any]
    try:
        prepared = make()
    except ShoalError as error:
        told = {"failure": " ".join(str(error).split())}
    else:
        told = {
            "session": secrets.token_hex(8),
            "folder": str(prepared.folder.root),
            "resume": prepared.resume,
            "job": jobs.dump(prepared.job),
            "cluster": clusters.dump(prepared.cluster),
            "plan": prepared.plan.to_json(),
        }
    store.set(_RUN, json.dumps(told))
    return told


def _ask(store: Store) -> dict[str, Any]:
    """What the first process told."""
    told = json.loads(store.get(_RUN))
    store.set(f"{_READ}/{store.add(_READ, 1)}", "")
    return told


def _await_readers(store: Store, count: int) -> None:
    """Stay until the others have read of the failure: the store may end with this process. Not for ever."""
    with contextlib.suppress(DistError):
        if count:
            store.wait([f"{_READ}/{count}"], timedelta(seconds=READ_SECONDS))


def _receive(told: Mapping[str, Any]) -> Prepared:
    """The run that the first process prepared, from the folder on this machine, which is filled if it is not shared."""
    folder = RunFolder(Path(told["folder"])).make()
    for path, key in ((folder.job, "job"), (folder.cluster, "cluster"), (folder.plan, "plan")):
        write_whole(path, told[key])
    return replace(read(folder), resume=told["resume"])
