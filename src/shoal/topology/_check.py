"""Refuse a topology that would lose the mean, deadlock or never agree, before the first message."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from shoal.errors import UserError
from shoal.topology._protocol import Peer, Topology

Rows = dict[Peer, Mapping[Peer, float]]
TOLERANCE = 1e-9


def check(topology: Topology, peers: Sequence[Peer], island: Mapping[Peer, int]) -> None:
    """Check W(t) at every step of a period, for a topology that is not one of ours.

    Every W(t) is doubly stochastic with positive weights and a positive diagonal; rows, `gives` and groups are sorted
    and agree with each other; W has the period, the fixed neighbours and the symmetry that the topology claims; and
    over a period everybody is connected, so that consensus is reached in the limit.
    Costs two periods of every row, O(non-zero weights); matrices are never built.

    Raises:
        UserError: names the topology, the step and the row.
    """
    checker = _Checker(topology, tuple(peers), island)
    period = topology.period(peers, island)
    if not isinstance(period, int) or period < 1:
        raise checker.error(f"period is {period!r}", "period() must return a whole number of steps, at least 1")
    linked = _Linked(peers)
    first: Rows = {}
    for t in range(period):
        rows = checker.rows(t)
        first = first or rows
        checker.doubly_stochastic(t, rows)
        checker.exchanges(t, rows)
        checker.groups(t, rows)
        checker.claims(t, rows, first, again=checker.rows(t + period), period=period)
        for me, row in rows.items():
            for peer in row:
                linked.join(me, peer)
    pieces = linked.pieces()
    if len(pieces) > 1:
        listed = " | ".join(", ".join(piece) for piece in pieces)
        raise checker.error(
            f"over a period of {period} the peers fall into {len(pieces)} pieces: {listed}", "link them"
        )


class _Checker:
    def __init__(self, topology: Topology, peers: tuple[Peer, ...], island: Mapping[Peer, int]) -> None:
        self.topology, self.peers, self.island = topology, peers, island

    def error(self, problem: str, mend: str, *, t: int | None = None, row: Peer | None = None) -> UserError:
        where = "" if t is None else f"step {t}: " if row is None else f"step {t}, row {row!r}: "
        kind = type(self.topology)
        return UserError(
            f"topology {kind.__module__}:{kind.__qualname__}: {where}{problem}", key="mixing.topology", mend=mend
        )

    def rows(self, t: int) -> Rows:
        """All rows of W(t), each a sorted set of positive weights of known peers, me included, with sum 1."""
        rows: Rows = {}
        known = set(self.peers)
        for me in self.peers:
            row = rows[me] = self.topology.takes(self.peers, self.island, t, me)
            if unknown := sorted(row.keys() - known):
                raise self.error(f"takes from {unknown}, who are not peers", "take from peers only", t=t, row=me)
            if list(row) != sorted(row):
                raise self.error(
                    f"the order is {list(row)}", "return the weights in sorted order of peers", t=t, row=me
                )
            if me not in row:
                raise self.error("no weight for itself", "give the peer's own value a positive weight", t=t, row=me)
            for peer, weight in row.items():
                if not weight > 0:
                    raise self.error(f"weight {weight!r} for {peer!r}", "leave out who has no weight", t=t, row=me)
            total = math.fsum(row.values())
            if not math.isclose(total, 1.0, abs_tol=TOLERANCE):
                raise self.error(f"the weights sum to {total!r}", "a row of W must sum to 1", t=t, row=me)
        return rows

    def doubly_stochastic(self, t: int, rows: Rows) -> None:
        columns: dict[Peer, list[float]] = {peer: [] for peer in self.peers}
        for row in rows.values():
            for peer, weight in row.items():
                columns[peer].append(weight)
        for peer, weights in columns.items():
            total = math.fsum(weights)
            if not math.isclose(total, 1.0, abs_tol=TOLERANCE):
                raise self.error(
                    f"all peers together take {total!r} of it, so mixing would change the workers' mean",
                    "a column of W must sum to 1, too",
                    t=t,
                    row=peer,
                )

    def exchanges(self, t: int, rows: Rows) -> None:
        """Whoever waits for a message is sent one, and nobody else."""
        takers: dict[Peer, list[Peer]] = {peer: [] for peer in self.peers}
        for me in self.peers:
            for peer in rows[me]:
                if peer != me:
                    takers[peer].append(me)
        for me in self.peers:
            gives = list(self.topology.gives(self.peers, self.island, t, me))
            if gives != takers[me]:
                problem = f"gives to {gives}, but {takers[me]} take from it"
                raise self.error(
                    problem, "gives() must list, sorted, the others whose row has a weight for me", t=t, row=me
                )

    def groups(self, t: int, rows: Rows) -> None:
        """Either nobody has a group, or W(t) is the partition that the groups say."""
        groups = {me: self.topology.group(self.peers, self.island, t, me) for me in self.peers}
        for me, group in groups.items():
            if (group is None) != (groups[self.peers[0]] is None):
                raise self.error("some peers have a group and some have none", "all or none of a step", t=t, row=me)
            if group is None:
                continue
            if list(group) != list(rows[me]) or any(list(rows[peer]) != list(group) for peer in group):
                raise self.error(
                    f"the group is {list(group)}, which is not whom each of its members takes from",
                    "group() must be the sorted list of those whom every member takes from, or None",
                    t=t,
                    row=me,
                )
            for peer, weight in rows[me].items():
                if not math.isclose(weight, 1 / len(group), abs_tol=TOLERANCE):
                    raise self.error(
                        f"weight {weight!r} for {peer!r} in a group of {len(group)}",
                        "in a group everybody weighs the same; return None from group() otherwise",
                        t=t,
                        row=me,
                    )

    def claims(self, t: int, rows: Rows, first: Rows, *, again: Rows, period: int) -> None:
        for me in self.peers:
            if not _same(rows[me], again[me]):
                raise self.error(
                    f"is another at step {t + period}", f"W must repeat after its period, {period}", t=t, row=me
                )
            if self.topology.fixed and rows[me].keys() != first[me].keys():
                raise self.error("the neighbours are others than at step 0", "set fixed = False", t=t, row=me)
            for peer, weight in rows[me].items():
                if not self.topology.directed and not math.isclose(rows[peer].get(me, 0.0), weight, abs_tol=TOLERANCE):
                    problem = f"takes {weight!r} of {peer!r}, who takes {rows[peer].get(me, 0.0)!r} back"
                    raise self.error(problem, "set directed = True", t=t, row=me)


def _same(a: Mapping[Peer, float], b: Mapping[Peer, float]) -> bool:
    return a.keys() == b.keys() and all(math.isclose(a[peer], b[peer], abs_tol=TOLERANCE) for peer in a)


class _Linked:
    """Which peers hang together (union-find)."""

    def __init__(self, peers: Sequence[Peer]) -> None:
        self._up = {peer: peer for peer in peers}

    def root(self, peer: Peer) -> Peer:
        while (up := self._up[peer]) != peer:
            self._up[peer] = self._up[up]
            peer = up
        return peer

    def join(self, a: Peer, b: Peer) -> None:
        self._up[self.root(a)] = self.root(b)

    def pieces(self) -> list[list[Peer]]:
        found: dict[Peer, list[Peer]] = {}
        for peer in self._up:
            found.setdefault(self.root(peer), []).append(peer)
        return list(found.values())
