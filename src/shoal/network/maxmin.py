"""Max-min fair rates by progressive filling.

All rates grow together until a resource is full; the flows that cross it keep their rate, the others go on growing
(Bertsekas and Gallager, "Data Networks", 2nd ed., section 6.5.2). The result is the only allocation in which no flow
can get more without taking from one that has no more than it.

Flows with the same way are one *stream*: they have the same rate, so what counts is how many there are.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence


def fill(capacities: Sequence[float], streams: Sequence[tuple[int, float, Sequence[int]]]) -> list[float]:
    """Rates per flow, one for each stream.

    Args:
        capacities: of each resource, in bytes/s.
        streams: (number of flows, cap on the sum of their rates, resources that they cross); resources by index.

    Returns:
        bytes/s of each flow of each stream.
    """
    left = list(capacities)
    active = [0] * len(capacities)
    crossing: list[list[int]] = [[] for _ in capacities]
    for s, (count, _, resources) in enumerate(streams):
        for r in resources:
            active[r] += count
            crossing[r].append(s)
    rates = [-1.0] * len(streams)
    # Levels at which something is full: streams' own caps by ~index, resources by index. A resource's level only grows
    # while others are filled, so the heap may hold levels that are too low; they are put right when they come up.
    heap = [(cap / count, ~s) for s, (count, cap, _) in enumerate(streams)]
    heap += [(left[r] / active[r], r) for r in range(len(left)) if active[r]]
    heapq.heapify(heap)
    growing = len(streams)
    while growing:
        level, which = heapq.heappop(heap)
        if which < 0:
            full = (~which,)
        elif active[which] == 0:
            continue
        else:
            true = max(0.0, left[which]) / active[which]
            if true > level:
                heapq.heappush(heap, (true, which))
                continue
            full = crossing[which]
        for s in full:
            if rates[s] < 0.0:
                rates[s] = level
                growing -= 1
                count, _, resources = streams[s]
                for r in resources:
                    left[r] -= level * count
                    active[r] -= count
    return rates
