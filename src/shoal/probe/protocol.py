"""The survey: the leader gives orders, one after the other to each peer, and collects what they find.

It touches nothing but its `World`, so the same survey runs on real machines and in virtual time, where it must find
what the cluster file says. First everybody says who he is; then the devices are measured, one at a time per physical
machine, because those share processors; then latencies; then bandwidths, one direction after the other. One device of
a host measures its links, since the others share them; two devices of one host measure what is between them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from shoal.errors import ShoalError
from shoal.probe.device import measure_device
from shoal.probe.figures import About, DeviceFacts, Figure, HostFacts, Pair, Settings, Survey, Way
from shoal.probe.flow import catch, pour
from shoal.probe.letters import hear, tell
from shoal.probe.ping import Clock, ping, pong
from shoal.probe.places import Places, arrange
from shoal.probe.rounds import apart, batches, circle, groups
from shoal.world import Peer, World

HELLO, ORDER, RESULT = "probe-hello", "probe-order", "probe-result"


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far the survey is: `done` of `total` measurements, and the one that has just ended, for a person."""

    done: int
    total: int
    text: str


Tell = Callable[[Progress], None]


async def survey(
    world: World,
    about: About,
    settings: Settings | None = None,
    *,
    names: Mapping[Peer, tuple[str, str]] | None = None,
    wall: Clock | None = None,
    tell_progress: Tell = lambda progress: None,
) -> Survey | None:
    """Measure together with all other peers of `world`.

    Args:
        about: this peer.
        settings: the leader's count.
        names: peer → (device, host) as they should be called; the leader's count.
        wall: a clock that other hosts have too, in seconds; without one no offsets are measured.
        tell_progress: called at the leader.

    Returns:
        The survey at the leader, which is the first peer; None elsewhere.

    Raises:
        UserError: the names do not fit the machines.
        PeerLost: a peer was lost; whoever is left cannot go on.
    """
    settings = settings or Settings()
    leader = world.peers[0]
    if world.me == leader:
        return await _Leader(world, settings, wall, tell_progress).lead(about, names or {})
    await tell(world, leader, HELLO, 0, asdict(about))
    while True:
        order = await hear(world, leader, ORDER, 0, within=settings.patience)
        if order["do"] == "leave":
            return None
        await tell(world, leader, RESULT, order["number"], await _obey(world, order, wall))


async def _obey(world: World, order: Mapping[str, Any], wall: Clock | None) -> dict[str, Any]:
    settings = Settings(**order["settings"])
    match order:
        case {"do": "device", "memory_bytes": memory}:
            return await measure_device(world, memory, settings)
        case {"do": "ping", "peer": peer, "number": number}:
            return await ping(world, peer, number, settings, wall)
        case {"do": "pong", "peer": peer, "number": number}:
            return await pong(world, peer, number, wall)
        case {"do": "pour", "peer": peer, "number": number, "round_trip": round_trip}:
            return await pour(world, peer, number, round_trip, settings)
        case {"do": "catch", "peer": peer, "number": number, "round_trip": round_trip}:
            return await catch(world, peer, number, round_trip, settings)
        case _:
            raise ShoalError(f"no such order: {order}")


class _Leader:
    """Gives the orders. One object leads one survey."""

    def __init__(self, world: World, settings: Settings, wall: Clock | None, tell_progress: Tell) -> None:
        self._world, self._settings, self._wall, self._tell = world, settings, wall, tell_progress
        self._number = self._done = self._total = 0
        self._devices: dict[Peer, dict[str, Any]] = {}
        self._echoes: dict[Pair, dict[str, Any]] = {}
        self._rates: dict[Pair, dict[str, Any]] = {}

    async def lead(self, about: About, names: Mapping[Peer, tuple[str, str]]) -> Survey:
        world, began = self._world, self._world.now()
        abouts = {world.me: about}
        for peer in world.peers[1:]:
            abouts[peer] = About(**await hear(world, peer, HELLO, 0, within=self._settings.patience))
        places = arrange(abouts, names)
        rounds = [sorted(places.inside), *circle(list(places.hosts))]
        self._total = len(world.peers) + sum(3 * len(pairs) for pairs in rounds)
        await self._measure_devices(places)
        await self._measure_latencies(places, rounds)
        await self._measure_bandwidths(places, rounds)
        await self._all([self._dismiss(peer) for peer in world.peers[1:]])
        return self._result(places, world.now() - began)

    # -------------------------------------------------------------------------------------------------- orders

    async def _measure_devices(self, places: Places) -> None:
        async def one_machine(peers: Sequence[Peer]) -> None:
            for peer in peers:
                memory = places.memory_bytes[peer]
                self._devices[peer] = await self._order(peer, self._next(), do="device", memory_bytes=memory)
                self._note(f"{places.device[peer]}: speed and memory")

        await self._all([one_machine(peers) for peers in places.sharing_processors()])

    async def _measure_latencies(self, places: Places, rounds: Sequence[Sequence[Pair]]) -> None:
        async def one_pair(pair: Pair) -> None:
            a, b = places.ends(pair)
            number = self._next()
            there = self._order(a, number, do="ping", peer=b)
            self._echoes[pair], _ = await self._all([there, self._order(b, number, do="pong", peer=a)])
            self._note(f"{_spoken(pair)}: latency")

        keep_apart = partial(apart, physical=places.physical, uplinks=set())
        for pairs in rounds:
            for batch in batches(pairs, keep_apart):
                await self._all([one_pair(pair) for pair in batch])

    async def _measure_bandwidths(self, places: Places, rounds: Sequence[Sequence[Pair]]) -> None:
        async def one_pair(pair: Pair) -> None:
            a, b = places.ends(pair)
            trip = 2.0 * self._echoes[pair]["latency_s"]
            for (src, dst), way in (((a, b), pair), ((b, a), (pair[1], pair[0]))):
                number = self._next()
                pouring = self._order(src, number, do="pour", peer=dst, round_trip=trip)
                catching = self._order(dst, number, do="catch", peer=src, round_trip=trip)
                _, found = await self._all([pouring, catching])
                self._rates.setdefault(way, found)
                self._note(f"{_spoken(way)}: bandwidth")

        between = {pair: echo["latency_s"] for pair, echo in self._echoes.items() if pair[0] != pair[1]}
        keep_apart = partial(apart, physical=places.physical, uplinks=groups(between))
        for pairs in rounds:
            for batch in batches(pairs, keep_apart):
                await self._all([one_pair(pair) for pair in batch])

    async def _order(self, whom: Peer, number: int, **what: Any) -> dict[str, Any]:
        order = {**what, "number": number, "settings": asdict(self._settings)}
        if whom == self._world.me:
            return await _obey(self._world, order, self._wall)
        await tell(self._world, whom, ORDER, 0, order)
        return await hear(self._world, whom, RESULT, number, within=self._settings.patience)

    async def _dismiss(self, peer: Peer) -> None:
        await tell(self._world, peer, ORDER, 0, {"do": "leave"})

    async def _all(self, doings: Sequence[Any]) -> list[Any]:
        """Do these at the same time; results in their order."""
        tasks = [self._world.spawn(doing, "probe order") for doing in doings]
        return [await task for task in tasks]

    def _next(self) -> int:
        self._number += 1
        return self._number

    def _note(self, text: str) -> None:
        self._done += 1
        self._tell(Progress(done=self._done, total=self._total, text=text))

    # ------------------------------------------------------------------------------------------------- results

    def _result(self, places: Places, seconds: float) -> Survey:
        ways = {(src, dst): self._way(src, dst) for src, dst in sorted(self._rates)}
        return Survey(
            leader=places.host[self._world.me],
            devices={places.device[peer]: self._device(peer, places) for peer in self._world.peers},
            hosts={host: self._host(host, places) for host in places.hosts},
            ways=ways,
            seconds=seconds,
            nbytes=sum(way.nbytes for way in ways.values()),
        )

    def _device(self, peer: Peer, places: Places) -> DeviceFacts:
        found = self._devices[peer]
        return DeviceFacts(
            host=places.host[peer],
            kind=places.kind[peer],
            memory_bytes=places.memory_bytes[peer],
            memory_bandwidth=Figure(**found["memory_bandwidth"]),
            flops={precision: Figure(**figure) for precision, figure in found["flops"].items()},
        )

    def _host(self, host: str, places: Places) -> HostFacts:
        """Its clock is the leader's host's own, or was seen in the pings between the two."""
        leader, memory = places.host[self._world.me], places.host_memory_bytes[host]
        if host == leader:
            known = self._wall is not None
            offset, error = (0.0, 0.0) if known else (None, None)
        else:
            forth = (leader, host) in self._echoes
            echo = self._echoes[(leader, host) if forth else (host, leader)]
            offset, error = echo["offset_s"], echo["offset_error_s"]
            offset = -offset if offset is not None and not forth else offset
        return HostFacts(memory_bytes=memory, clock_offset_s=offset, clock_error_s=error)

    def _way(self, src: str, dst: str) -> Way:
        echo = self._echoes.get((src, dst)) or self._echoes[dst, src]
        rate = self._rates[src, dst]
        return Way(
            latency_s=echo["latency_s"],
            least_latency_s=echo["least_latency_s"],
            jitter_s=echo["jitter_s"],
            pings=echo["pings"],
            bandwidth=Figure(**rate["figure"]),
            settled=rate["settled"],
            nbytes=rate["nbytes"],
            seconds=rate["seconds"],
        )


def _spoken(way: Pair) -> str:
    return f"{way[0]} → {way[1]}" if way[0] != way[1] else f"inside {way[0]}"
