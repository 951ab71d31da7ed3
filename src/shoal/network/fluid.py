"""The fluid network: transfers are streams of liquid that share what they cross max-min fairly.

A transfer between two hosts crosses the source's uplink, the link's pipe and the destination's downlink; within a host
it crosses only that host's own link. It lasts until its bytes have left; the latency comes on top, once, and is the
caller's to add. Transfers of the same way share equally, so they are kept together: a way counts the bytes that each of
its transfers was served so far, and a transfer ends when that count reaches its own mark.

Whenever a transfer starts or ends, rates change only for ways that can feel it: those connected through *contended*
resources. A resource is contended if the ways that cross it could ask for more than it has (each at most the smallest
capacity on its way); in real clusters most are not. Rates are computed once per instant, however many transfers start
or end at it, when the next completion is asked for.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable

from shoal.cluster import Cluster
from shoal.network.maxmin import fill

_ROUNDING = 1e-9  # relative; demand is a running sum


Watcher = Callable[[int, float], None]
"""Told a flow's number and its rate in bytes/s whenever the rate was computed anew."""


class _Resource:
    __slots__ = ("capacity", "contended", "demand", "name", "ways")

    def __init__(self, name: str, capacity: float) -> None:
        self.name, self.capacity = name, capacity
        self.demand = 0.0  # what the ways in use could ask for at most
        self.contended = False
        self.ways: dict[_Way, None] = {}  # in use, in the order in which they came into use

    def enter(self, way: _Way) -> None:
        self.ways[way] = None
        self.demand += way.cap
        self.contended = self.demand > self.capacity * (1.0 + _ROUNDING)

    def leave(self, way: _Way) -> None:
        del self.ways[way]
        self.demand = self.demand - way.cap if self.ways else 0.0
        self.contended = self.demand > self.capacity * (1.0 + _ROUNDING)


class _Way:
    """From one host to another, or within one.

    Each of its flows had sent `served` bytes at time `since` and sends at `rate` from then on; the first ends at `end`.
    """

    __slots__ = (
        "cap",
        "component",
        "end",
        "flows",
        "jitter",
        "latency",
        "rate",
        "resources",
        "served",
        "since",
        "watchers",
    )

    def __init__(self, resources: tuple[_Resource, ...], latency: float, jitter: float) -> None:
        self.resources, self.latency, self.jitter = resources, latency, jitter
        self.cap = min((r.capacity for r in resources), default=math.inf)
        self.flows: list[tuple[float, int]] = []  # heap of (mark on `served`, flow)
        self.served = self.since = self.rate = 0.0
        self.end = math.inf
        self.component: _Component | None = None
        self.watchers: dict[int, Watcher] = {}


class _Component:
    """Ways that share contended resources, or one that shares none: their rates are computed together."""

    __slots__ = ("current", "ways")

    def __init__(self, ways: list[_Way]) -> None:
        self.ways = ways
        self.current = True  # until the rates of one of them are computed anew


class FluidNetwork:
    """Transfers on a cluster's links, on the caller's clock: times handed in must not go back.

    Flows are numbered by the caller; larger means later. All results are in ascending order of flows.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._resources: dict[str, _Resource] = {}
        self._ways: dict[tuple[str, ...], _Way] = {}
        self._of_pair: dict[tuple[str, str], _Way] = {}
        self._way_of: dict[int, _Way] = {}
        self._changed: dict[_Way, None] = {}  # ways with other flows than when rates were last computed
        self._freed: dict[_Resource, None] = {}  # contended resources that a way has left
        self._now = 0.0
        self._next: list[tuple[float, int, _Component]] = []  # heap of (when its first flow ends, number, component)
        self._computed = 0

    def __len__(self) -> int:
        """Transfers under way."""
        return len(self._way_of)

    def latency(self, src: str, dst: str) -> float:
        """Seconds from the moment the last byte leaves device `src` until it is at device `dst`."""
        return self._way(src, dst).latency

    def jitter(self, src: str, dst: str) -> float:
        """Standard deviation of that latency, from message to message."""
        return self._way(src, dst).jitter

    def bandwidth(self, src: str, dst: str) -> float:
        """Bytes/s of a transfer from `src` to `dst` that shares with nobody."""
        return self._way(src, dst).cap

    def start(self, flow: int, src: str, dst: str, nbytes: float, now: float, watcher: Watcher | None = None) -> None:
        """Flow number `flow` of `nbytes` starts at time `now`. An empty one ends at once."""
        self._move(now)
        way = self._way(src, dst)
        self._settle(way)
        if not way.flows:
            way.served = 0.0
            for resource in way.resources:
                resource.enter(way)
        heapq.heappush(way.flows, (way.served + nbytes, flow))
        self._way_of[flow] = way
        if watcher is not None:
            way.watchers[flow] = watcher
        self._changed[way] = None

    def cancel(self, flows: Iterable[int], now: float) -> None:
        """These flows are broken off; ones that have ended are ignored."""
        self._move(now)
        for flow in flows:
            way = self._way_of.pop(flow, None)
            if way is not None:
                self._settle(way)
                way.flows = [entry for entry in way.flows if entry[1] != flow]
                heapq.heapify(way.flows)
                way.watchers.pop(flow, None)
                self._touch(way)

    def next_completion(self) -> float:
        """When the next flow will end if none is added, or infinity."""
        if self._changed or self._freed:
            self._share()
        while self._next and not self._next[0][2].current:
            heapq.heappop(self._next)
        return self._next[0][0] if self._next else math.inf

    def advance(self, now: float) -> list[int]:
        """Let time pass until `now`; returns the flows that have ended by then.

        Flows end one instant after another, and rates change in between, so `now` may lie beyond several completions.
        """
        ended: list[int] = []
        while (at := self.next_completion()) <= now:
            self._now = at
            while self._next and self._next[0][0] == at:
                component = heapq.heappop(self._next)[2]
                if component.current:
                    for way in component.ways:
                        if way.end == at:
                            self._finish(way, ended)
        self._now = now
        ended.sort()
        return ended

    def rates(self) -> dict[int, float]:
        """Bytes/s of each flow under way."""
        self.next_completion()
        return {flow: self._way_of[flow].rate for flow in sorted(self._way_of)}

    def crossing(self) -> dict[str, tuple[float, list[int]]]:
        """Resources in use: name → (capacity in bytes/s, flows that cross it)."""
        return {
            name: (resource.capacity, sorted(flow for way in resource.ways for _, flow in way.flows))
            for name, resource in sorted(self._resources.items())
            if resource.ways
        }

    # ------------------------------------------------------------------------------------------------- ways

    def _way(self, src: str, dst: str) -> _Way:
        way = self._of_pair.get((src, dst))
        if way is None:
            way = self._of_pair[src, dst] = self._find_way(src, dst)
        return way

    def _find_way(self, src: str, dst: str) -> _Way:
        link = self.cluster.link(src, dst)
        source = self.cluster.hosts[self.cluster.device(src).host]
        target = self.cluster.hosts[self.cluster.device(dst).host]
        names = {f"pipe {link.pipe}": link.bandwidth_bytes_per_s}
        if source.name != target.name:
            names[f"up {source.name}"] = source.up_bytes_per_s
            names[f"down {target.name}"] = target.down_bytes_per_s
        key = (*names, source.name, target.name)
        if key not in self._ways:
            resources = tuple(self._resource(name, capacity) for name, capacity in names.items() if capacity < math.inf)
            self._ways[key] = _Way(resources, link.latency_s, link.jitter_s)
        return self._ways[key]

    def _resource(self, name: str, capacity: float) -> _Resource:
        if name not in self._resources:
            self._resources[name] = _Resource(name, capacity)
        return self._resources[name]

    # ------------------------------------------------------------------------------------------------- time

    def _move(self, now: float) -> None:
        """Time has passed and nothing has happened in it."""
        if now > self._now:
            if self.next_completion() < now:
                raise ValueError(f"a transfer ends at {self._next[0][0]} s: advance to {now} s before changing flows")
            self._now = now

    def _settle(self, way: _Way) -> None:
        """Count what `way` has served until now."""
        if way.flows and self._now > way.since:
            way.served += way.rate * (self._now - way.since)
        way.since = self._now

    def _finish(self, way: _Way, ended: list[int]) -> None:
        """The first flow of `way` ends now, and with it all that are served as much."""
        way.served, way.since = way.flows[0][0], self._now
        while way.flows and way.flows[0][0] <= way.served:
            flow = heapq.heappop(way.flows)[1]
            del self._way_of[flow]
            way.watchers.pop(flow, None)
            ended.append(flow)
        self._touch(way)

    def _touch(self, way: _Way) -> None:
        """`way` has fewer flows than before."""
        if way.flows:
            self._changed[way] = None
            return
        self._changed.pop(way, None)
        if way.component is not None:
            way.component.current = False
            way.component = None
        way.rate = 0.0
        for resource in way.resources:
            if resource.contended:
                self._freed[resource] = None
            resource.leave(way)

    # ------------------------------------------------------------------------------------------------ rates

    def _share(self) -> None:
        """New rates for every way that can feel the changes, component by component."""
        seen: set[_Way] = set()
        for way in self._changed:
            if way not in seen:
                self._share_component(way, seen)
        for resource in self._freed:  # the ways that are left may lie in several components
            for way in resource.ways:
                if way not in seen:
                    self._share_component(way, seen)
        self._changed.clear()
        self._freed.clear()

    def _share_component(self, first: _Way, seen: set[_Way]) -> None:
        """Rates of all ways that are connected with `first` through contended resources."""
        seen.add(first)
        ways = [first]
        index: dict[_Resource, int] = {}
        streams: list[tuple[int, float, list[int]]] = []
        for way in ways:  # grows as it goes
            crossed: list[int] = []
            for resource in way.resources:
                if resource.contended:
                    if resource not in index:
                        index[resource] = len(index)
                        fresh = [other for other in resource.ways if other not in seen]
                        seen.update(fresh)
                        ways += fresh
                    crossed.append(index[resource])
            streams.append((len(way.flows), way.cap, crossed))
        if index:
            rates = fill([resource.capacity for resource in index], streams)
        else:
            rates = [first.cap / len(first.flows)]
        component = _Component(ways)
        for way, rate in zip(ways, rates, strict=True):
            if way.component is not None:
                way.component.current = False
            way.component = component
            self._flow_at(way, rate)
        self._computed += 1
        heapq.heappush(self._next, (min(way.end for way in ways), self._computed, component))

    def _flow_at(self, way: _Way, rate: float) -> None:
        """From now on each flow of `way` gets `rate`; predict when its first one ends."""
        now = self._now
        if now > way.since:
            way.served += way.rate * (now - way.since)
            way.since = now
        way.rate = rate
        left = way.flows[0][0] - way.served
        way.end = now if left <= 0.0 or rate == math.inf else now + left / rate
        if way.watchers:
            for flow, watcher in way.watchers.items():
                watcher(flow, rate)
