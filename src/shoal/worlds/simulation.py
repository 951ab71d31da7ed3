"""Starts workers in virtual worlds on one virtual clock, watches over them, and keeps what happened.

    results = Simulation(cluster, seed=1).run(program)

runs ``program(world)`` once for every device of the cluster.
"""

from __future__ import annotations

import asyncio
import gc
import math
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from random import Random
from typing import Any, Generic, TypeVar

import torch

from shoal.cluster import Cluster
from shoal.errors import Deadlock, PeerLost, ShoalError
from shoal.trace import SPAN_LIMIT, Event, Trace
from shoal.world import Peer, Work, World
from shoal.worlds.clock import VirtualLoop
from shoal.worlds.collective import Collectives
from shoal.worlds.computations import Lanes
from shoal.worlds.crew import Crew
from shoal.worlds.faults import DETECTION_S, Crash, Delay, Fault, Freeze, Jitter, Sleep
from shoal.worlds.inbox import Inbox
from shoal.worlds.post import Address, Post
from shoal.worlds.seeds import derive
from shoal.worlds.virtual import Take, VirtualWorld

T = TypeVar("T")
Program = Callable[[World], Coroutine[Any, Any, T]]


class Simulation:
    """A virtual world for many workers.

    Args:
        numeric: real tensors; False is timing mode.
        seed: the job's seed, from which computations and `World.rng` draw.
        network_seed: shuffles what happens at the same moment; results must not depend on it.
        threads: intra-op threads of every computation; the bits depend on it.
        jitter: how computations depart from their predicted times.
        fuzz: run each computation's function at a random point of its interval (seeded by `network_seed`).
        peer_deadline: seconds of silence after which a peer is given up.
        wait_deadline: seconds that a wait without a deadline of its own lasts at most.
        faults: crashes, freezes, delays.
        expand_collectives: send the ring's messages instead of computing collectives in one go.
        arrivals: for each peer what its `recv_any` must take, in order; see `recorded_takes`.
        span_limit: spans kept per peer.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        numeric: bool = True,
        seed: int = 0,
        network_seed: int = 0,
        threads: int = 1,
        jitter: Jitter | None = None,
        fuzz: bool = False,
        peer_deadline: float = 15.0,
        wait_deadline: float = 600.0,
        faults: Iterable[Fault] = (),
        expand_collectives: bool = False,
        arrivals: Mapping[Peer, Sequence[Take]] | None = None,
        span_limit: int = SPAN_LIMIT,
    ) -> None:
        self.cluster, self.numeric, self.seed, self.network_seed = cluster, numeric, seed, network_seed
        self.threads, self.jitter, self.fuzz = threads, jitter or Jitter(), fuzz
        self.peer_deadline, self.wait_deadline = peer_deadline, wait_deadline
        self.faults, self.expand_collectives, self.span_limit = tuple(faults), expand_collectives, span_limit
        self.arrivals = arrivals or {}
        self.traces: dict[Peer, Trace] = {}
        """What happened to each peer in the last run."""
        self.now = 0.0
        """Virtual seconds that the last run took."""
        self.moments = 0
        """Events of the last run, as the loop counted them."""

    def run(
        self, program: Program[T], *, peers: Sequence[Peer] | None = None, return_exceptions: bool = False
    ) -> dict[Peer, T]:
        """Run ``program(world)`` on every peer until all have returned; gives each peer's result.

        Tasks that a program has spawned and not awaited are awaited before its result counts. A peer whose `Crash` was
        planned has no result.

        Args:
            peers: the devices that take part; all by default.
            return_exceptions: go on when a worker fails, and give its exception (of a crashed peer: `PeerLost`) as its
                result. Otherwise the first failure ends the run and is raised, with a note that names the worker.

        Raises:
            Deadlock: nothing can ever happen again, though not all have returned. Lists who waits for what.
        """
        threads, thresholds = torch.get_num_threads(), gc.get_threshold()
        torch.set_num_threads(self.threads)
        if not self.numeric:
            # With a thousand workers alive, looking for garbage among them all takes longer than the simulation itself,
            # and without tensors the garbage is small.
            gc.set_threshold(20_000, 10, 1_000)
        loop = VirtualLoop(tie_seed=derive(self.network_seed, "ties"))
        try:
            run = _Run(self, loop, program, sorted(peers or self.cluster.peers), return_exceptions)
            self.traces = {peer: worker.trace for peer, worker in run.workers.items()}
            main = loop.create_task(run.main(), name="simulation")
            try:
                return loop.run_until_complete(main)
            except BaseException:
                if not main.done():  # a defect or Ctrl-C broke the loop itself
                    main.cancel()
                    loop.run_until_complete(asyncio.wait([main]))
                raise
        finally:
            self.now, self.moments = loop.time(), loop.events
            loop.close()
            torch.set_num_threads(threads)
            gc.set_threshold(*thresholds)


def recorded_takes(events: Iterable[Event]) -> dict[Peer, list[Take]]:
    """What each peer's `recv_any` took in a recorded run, as `Simulation` wants its `arrivals`."""
    takes: dict[Peer, list[Take]] = {}
    for event in events:
        if event.kind == "take":
            f = event.fields
            takes.setdefault(event.peer, []).append((f["message_kind"], f["source"], f["step"], _tuples(f["part"])))
    return takes


def _tuples(part: Any) -> Any:
    """Lists, which JSON makes of tuples, as tuples."""
    return tuple(map(_tuples, part)) if isinstance(part, (list, tuple)) else part


class _Worker(Generic[T]):
    """One peer's share of a run."""

    def __init__(self, run: _Run[T], peer: Peer) -> None:
        simulation, loop = run.simulation, run.loop
        device = simulation.cluster.device(peer)
        self.peer, self.crew, self.crashed = peer, Crew(loop), False
        self.trace = Trace(span_limit=simulation.span_limit)
        self.sleep = Sleep([f for f in simulation.faults if isinstance(f, Freeze) and f.peer == peer])
        inbox = Inbox(loop, len(run.peers) - 1, deadline=simulation.wait_deadline, call_later=loop.call_idle)
        self.address = Address(peer, inbox, self.trace, self.sleep)
        factor = simulation.jitter.factors(peer)

        def seconds(work: Work) -> float:
            return device.seconds(work.flops, work.touched_bytes) * factor()

        self.lanes = Lanes(
            loop,
            self.trace,
            peer,
            seconds=seconds,
            sleep=self.sleep,
            seed=simulation.seed,
            device=torch.device("cpu"),
            fuzz=Random(derive(simulation.network_seed, "fuzz", peer)).random if simulation.fuzz else None,
        )
        self.main: asyncio.Task[T] | None = None
        self.outcome: T | Exception | None = None
        self.running = True

    def waiting(self, collectives: list[str]) -> str:
        """What this worker waits for, in words."""
        things = self.address.inbox.waiting() + collectives
        return f"{self.peer!r} waits for {'; '.join(things) or 'its tasks ' + ', '.join(self.crew.names())}"


class _Run(Generic[T]):
    """One call of `Simulation.run`."""

    def __init__(
        self, simulation: Simulation, loop: VirtualLoop, program: Program[T], peers: Sequence[Peer], keep_going: bool
    ) -> None:
        self.simulation, self.loop, self.peers = simulation, loop, peers
        self._program, self._keep_going = program, keep_going
        if simulation.jitter.straggler is not None:
            simulation.cluster.device(simulation.jitter.straggler)  # refuses a misspelt name
        delays = [fault for fault in simulation.faults if isinstance(fault, Delay)]
        self._post = Post(loop, simulation.cluster, delays, network_seed=simulation.network_seed)
        self.workers = {peer: _Worker(self, peer) for peer in peers}
        self._addresses = {peer: worker.address for peer, worker in self.workers.items()}
        device = simulation.cluster.device
        self._collectives = Collectives(
            loop,
            self._post,
            touch=lambda peer: 1.0 / device(peer).memory_bandwidth_bytes_per_s,
            numeric=simulation.numeric,
            deadline=simulation.wait_deadline,
        )
        self._left = len(peers)
        self._verdict: asyncio.Future[None] = loop.create_future()
        loop.on_stuck = self._stuck

    async def main(self) -> dict[Peer, T]:
        self._plan_faults()
        watchers = [
            self.loop.create_task(self._watch(worker), name=f"watch {peer}") for peer, worker in self.workers.items()
        ]
        try:
            await self._verdict
        finally:
            for watcher in watchers:
                watcher.cancel()
            await asyncio.wait(watchers)
        ended = {peer: worker for peer, worker in self.workers.items() if self._keep_going or not worker.crashed}
        return {peer: worker.outcome for peer, worker in ended.items()}  # pyright: ignore[reportReturnType]

    async def _watch(self, worker: _Worker[T]) -> None:
        """Run one worker to its end."""
        worker.main = worker.crew.spawn(self._program(self._world(worker)), "main")
        try:
            await worker.crew.over
            worker.outcome = worker.main.result()
        except asyncio.CancelledError:
            if not worker.main.cancelled():
                raise  # the run is over
            worker.outcome = ShoalError("its program cancelled itself")
        except Exception as error:
            worker.outcome = error
        finally:
            worker.running = False
            await worker.crew.wind_up()
        self._ended(worker)

    def _world(self, worker: _Worker[T]) -> VirtualWorld:
        simulation, crashes = self.simulation, self._crashes(worker.peer)
        steps = [crash.step for crash in crashes if crash.step is not None]

        def on_step(step: int) -> None:
            if step >= min(steps):
                self._crash(worker)

        return VirtualWorld(
            self.loop,
            worker.address,
            self._addresses,
            self._post,
            worker.lanes,
            worker.crew,
            collectives=None if simulation.expand_collectives else self._collectives,
            device=torch.device("cpu" if simulation.numeric else "meta"),
            numeric=simulation.numeric,
            seed=simulation.seed,
            takes=simulation.arrivals.get(worker.peer, ()),
            on_step=on_step if steps else None,
        )

    def _ended(self, worker: _Worker[T]) -> None:
        """`worker` has returned or failed, and nothing of it runs any more."""
        error = worker.outcome if isinstance(worker.outcome, Exception) else None
        if error is not None and not worker.crashed:
            error.add_note(f"in worker {worker.peer!r} at {self.loop.time():.6f} s")
            if not self._keep_going and not self._verdict.done():
                self._verdict.set_exception(error)
        if not worker.crashed:
            why = "has finished" if error is None else f"has failed: {type(error).__name__}: {error}"
            self._announce(worker, why)
        self._left -= 1
        if self._left == 0 and not self._verdict.done():
            self._verdict.set_result(None)

    def _announce(self, worker: _Worker[T], why: str, stranded: Sequence[Any] = ()) -> None:
        """The others find out that `worker` is gone, after everything that it has sent has arrived."""
        when = max(self.loop.time() + DETECTION_S, math.nextafter(worker.address.last_arrival, math.inf))

        def find_out(_: object) -> None:
            for transfer in stranded:
                transfer.fail(PeerLost(worker.peer, transfer.message.tag.step, why))
            self._lose([other for other in self.workers.values() if other.running], worker.peer, why)

        self.loop.at(when, find_out, None)

    def _lose(self, workers: Sequence[_Worker[T]], peer: Peer, why: str) -> None:
        """`workers` find out that `peer` is gone, each as soon as it is awake."""
        now, awake = self.loop.time(), []
        for worker in workers:
            wakes = worker.sleep.awake(now)
            if wakes > now:
                self.loop.at(wakes, lambda worker: self._lose([worker], peer, why), worker)
            else:
                worker.address.inbox.lose(peer, why)
                awake.append(worker.peer)
        self._collectives.lose(peer, awake, why)

    # ------------------------------------------------------------------------------------------------ faults

    def _crashes(self, peer: Peer) -> list[Crash]:
        return [fault for fault in self.simulation.faults if isinstance(fault, Crash) and fault.peer == peer]

    def _plan_faults(self) -> None:
        for fault in self.simulation.faults:
            if not isinstance(fault, Delay):
                self.simulation.cluster.device(fault.peer)  # refuses a misspelt name
        for peer, worker in self.workers.items():
            for crash in self._crashes(peer):
                if crash.at is not None:
                    self.loop.at(crash.at, self._crash, worker)
        for fault in self.simulation.faults:
            if isinstance(fault, Freeze) and fault.seconds >= self.simulation.peer_deadline:
                self.loop.at(fault.at + self.simulation.peer_deadline, self._fall_silent, fault)

    def _crash(self, worker: _Worker[T]) -> None:
        if not worker.running or worker.crashed:
            return
        worker.crashed = True
        worker.lanes.close()
        stranded = self._post.cut_off(worker.address)
        worker.crew.stop(PeerLost(worker.peer, 0, f"crashed as planned at {self.loop.time():g} s"))
        self._announce(worker, "its connection closed", stranded)

    def _fall_silent(self, freeze: Freeze) -> None:
        """The others give up a frozen peer; when it wakes it finds their connections closed."""
        frozen = self.workers.get(freeze.peer)
        if frozen is None or not frozen.running:
            return
        others = [worker for worker in self.workers.values() if worker.running and worker is not frozen]
        self._lose(others, freeze.peer, f"silent for {self.simulation.peer_deadline:g} s")
        self.loop.at(freeze.at + freeze.seconds, self._wake_up_alone, frozen)

    def _wake_up_alone(self, frozen: _Worker[T]) -> None:
        for peer in self.workers:
            if frozen.running and peer != frozen.peer:
                self._lose([frozen], peer, "closed the connection after hearing nothing")

    def _stuck(self) -> None:
        """Nothing can ever happen again."""
        if self._verdict.done():
            return
        running = [worker for worker in self.workers.values() if worker.running]
        waits = [worker.waiting(self._collectives.waiting(worker.peer)) for worker in running]
        more = f"\n  and {len(waits) - 20} more" if len(waits) > 20 else ""
        text = f"deadlock at {self.loop.time():g} s:\n  " + "\n  ".join(waits[:20]) + more
        self._verdict.set_exception(Deadlock(text))
