"""From the links in the cluster file to the rules of `Links`; finds gaps, contradictions and clusters in pieces."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, product

from shoal import schema
from shoal.cluster.cluster import Links, Rule
from shoal.cluster.file import BetweenIslands, ClusterFile, IslandTable, LinkTable
from shoal.errors import UserError
from shoal.files import Source, check
from shoal.toml import KeyPath

Pair = tuple[str, str]


def resolve_links(
    source: Source, spec: ClusterFile, island: Mapping[str, str], members: Mapping[str, Sequence[str]]
) -> Links:
    """The links of a cluster.

    Args:
        island: host → its island.
        members: name that a link may use for hosts → those hosts.

    Raises:
        UserError: unknown places, self-links, two links for one pair, and pairs of hosts without any link.
    """
    reader = _Reader(source, spec, island, members)
    check(reader.problems, file=source.file)
    within_host, between = spec.defaults.within_host, spec.defaults.between_islands
    links = Links(
        island=island,
        within_host=Rule(latency_s=within_host.latency, bandwidth_bytes_per_s=within_host.bandwidth),
        within_island=reader.within,
        between=between and _rule(between, between.latency, between.bandwidth),
        rules=reader.rules,
    )
    check(_gaps(source, links), file=source.file)
    return links


def hosts_by_island(links: Links) -> dict[str, list[str]]:
    """Island → its hosts, both in the order of the file."""
    found: dict[str, list[str]] = {}
    for host, island in links.island.items():
        found.setdefault(island, []).append(host)
    return found


def fastest(links: Links) -> dict[str, tuple[float, float]]:
    """Host → bandwidth of its fastest link (out, in) to another host, or inside the host if there is no other."""
    hosts = hosts_by_island(links)
    out = {name: _island_rules(links, name, len(hosts), len(members)) for name, members in hosts.items()}
    best = {host: [out[island], out[island]] for host, island in links.island.items()}
    for (src, dst), rule in links.rules.items():
        for place, way in ((src, 0), (dst, 1)):
            for host in hosts.get(place, [place]):
                best[host][way] = max(best[host][way], rule.bandwidth_bytes_per_s)
    alone = links.within_host.bandwidth_bytes_per_s
    return {host: (up or alone, down or alone) for host, (up, down) in best.items()}


def _island_rules(links: Links, island: str, islands: int, hosts: int) -> float:
    """Bandwidth of the fastest rule that holds for all hosts of `island` by default; 0 if none does."""
    within = links.within_island.get(island) if hosts > 1 else None
    between = links.between if islands > 1 else None
    return max((rule.bandwidth_bytes_per_s for rule in (within, between) if rule), default=0.0)


class _Reader:
    """Reads the ``[[island]]`` and ``[[link]]`` tables into rules, and collects what is wrong with them."""

    def __init__(
        self, source: Source, spec: ClusterFile, island: Mapping[str, str], members: Mapping[str, Sequence[str]]
    ) -> None:
        self.source, self.island, self.members = source, island, members
        self.islands = list(dict.fromkeys(island.values()))
        self.problems: list[UserError] = []
        self.rules: dict[Pair, Rule] = {}
        self.within: dict[str, Rule] = {}
        self._default = spec.defaults.within_island
        self._said: dict[Pair, int] = {}  # pair of places → which [[link]]
        for n, table in enumerate(spec.island or [IslandTable(name=name) for name in self.islands]):
            self._read_island(table, n)
        for n, table in enumerate(spec.link):
            self._read_link(table, n)
        self._find_crossings()
        if between := spec.defaults.between_islands:
            self._check_jitter(("defaults", "between_islands"), between.latency, between.jitter)

    def _read_island(self, table: IslandTable, n: int) -> None:
        latency, bandwidth = table.latency, table.bandwidth
        if self._default:
            latency = self._default.latency if latency is None else latency
            bandwidth = bandwidth or self._default.bandwidth
        jitter, loss = table.jitter, table.loss
        if self._default:
            jitter = self._default.jitter if jitter is None else jitter
            loss = self._default.loss if loss is None else loss
        if latency is not None and bandwidth is not None:
            self._check_jitter(("island", n), latency, jitter or 0.0)
            self.within[table.name] = Rule(
                latency_s=latency, bandwidth_bytes_per_s=bandwidth, jitter_s=jitter or 0.0, loss=loss or 0.0
            )
        elif latency is not None or bandwidth is not None:
            missing = "latency" if latency is None else "bandwidth"
            mend = f"write its {missing}, or [defaults.within_island]"
            self._problem(("island", n), f"the {missing} is missing", mend)

    def _read_link(self, table: LinkTable, n: int) -> None:
        path: KeyPath = ("link", n)
        if table.one_way and (table.back_latency is not None or table.back_bandwidth is not None):
            mend = "leave out one_way, or the keys of the way back"
            self._problem((*path, "one_way"), "a one-way link says nothing about the way back", mend)
        self._check_jitter(path, table.latency, table.jitter)
        if table.from_ == table.to:
            mend = (
                "inside an island, write latency and bandwidth in its [[island]]; inside a host, [defaults.within_host]"
            )
            self._problem((*path, "to"), "a link to itself", mend)
            return
        forth = _rule(table, table.latency, table.bandwidth)
        back_latency = table.latency if table.back_latency is None else table.back_latency
        back = None if table.one_way else _rule(table, back_latency, table.back_bandwidth or table.bandwidth)
        sources, targets = self._place(table.from_, (*path, "from")), self._place(table.to, (*path, "to"))
        taken = [self._add(pair, forth, n) for pair in product(sources, targets)]
        if back is not None:
            taken += [self._add(pair, back, n) for pair in product(targets, sources)]
        if problem := next((problem for problem in taken if problem), None):
            self._problem(path, *problem)

    def _check_jitter(self, path: KeyPath, latency: float, jitter: float) -> None:
        """Delays are never negative: without latency they cannot vary around it."""
        if jitter and not latency:
            self._problem((*path, "jitter"), "a way without latency cannot have jitter", "write its mean latency")

    def _place(self, name: str, path: KeyPath) -> Sequence[str]:
        """The island or the hosts that `name` stands for."""
        if name in self.islands:
            return [name]
        if name not in self.members:
            mend = schema.nearest(name, [*self.islands, *self.members])
            self._problem(path, "no such island or host", mend)
        return self.members.get(name, [])

    def _add(self, pair: Pair, rule: Rule, n: int) -> tuple[str, str] | None:
        """Note the rule for `pair`; problem and mend if the way is taken."""
        src, dst = pair
        if src == dst:
            return f"host {src!r} is at both ends", "link two different hosts or islands"
        if pair in self.rules:
            what = f"the way from {src!r} to {dst!r} has a link already, {self._where(pair)}"
            return what, "delete one of them, or write one_way = true in both"
        self.rules[pair], self._said[pair] = rule, n
        return None

    def _find_crossings(self) -> None:
        """A link from host a to all of island B and one from all of island A to host b both claim the way a → b."""
        from_host = [(src, dst) for src, dst in self.rules if src in self.island and dst not in self.island]
        to_host = [(src, dst) for src, dst in self.rules if src not in self.island and dst in self.island]
        for (a, island_b), (island_a, b) in product(from_host, to_host):
            meet = self.island[a] == island_a and self.island[b] == island_b and a != b
            if meet and (a, b) not in self.rules:
                other = self._where((a, island_b))
                mend = f'write a [[link]] with from = "{a}" and to = "{b}"'
                path: KeyPath = ("link", self._said[island_a, b])
                self._problem(path, f"the way from {a!r} to {b!r} has two links, this and that {other}", mend)

    def _where(self, pair: Pair) -> str:
        return f"on line {self.source.line(('link', self._said[pair]))}"

    def _problem(self, path: KeyPath, problem: str, mend: str) -> None:
        self.problems.append(self.source.error(path, problem, mend=mend))


def _rule(table: LinkTable | BetweenIslands, latency: float, bandwidth: float) -> Rule:
    return Rule(
        latency_s=latency,
        bandwidth_bytes_per_s=bandwidth,
        shared=table.shared,
        price_per_byte=table.price,
        jitter_s=table.jitter,
        loss=table.loss,
    )


def _gaps(source: Source, links: Links) -> list[UserError]:
    """Pairs of hosts without a link; if that leaves the cluster in pieces, the pieces."""
    hosts = hosts_by_island(links)
    missing = list(_uncovered(links, hosts))
    pieces = _pieces(links, hosts) if missing else []
    if len(pieces) > 1:
        problem = f"the cluster is in {len(pieces)} pieces without a link between them: {' | '.join(pieces)}"
        default = "[defaults.between_islands]" if len(hosts) > 1 else "[defaults.within_island]"
        mend = f"write a [[link]] between them, or {default}"
        return [source.error("link", problem, mend=mend, shown=False)]
    problems = []
    for a, b in missing:
        if links.island[a] == links.island[b]:
            mend = f'write latency and bandwidth in [[island]] "{links.island[a]}", or [defaults.within_island]'
        else:
            mend = "write a [[link]] (without one_way, if only the way back is missing), or [defaults.between_islands]"
        problems.append(source.error("link", f"no link from {a!r} to {b!r}", mend=mend, shown=False))
    return problems


def _uncovered(links: Links, hosts: Mapping[str, Sequence[str]]) -> Iterator[Pair]:
    """For each pair of islands the first pair of hosts that no rule is about."""
    for here, there in product(hosts, hosts):
        general = here in links.within_island if here == there else links.between or (here, there) in links.rules
        if not general:
            pairs = product(hosts[here], hosts[there])
            yield from islice((pair for pair in pairs if links.find(*pair) is None), 1)


def _pieces(links: Links, hosts: Mapping[str, Sequence[str]]) -> list[str]:
    """The hosts of each connected component, named by island where the whole island is in it."""
    root = {host: host for host in links.island}

    def find(host: str) -> str:
        while root[host] != host:
            root[host] = host = root[root[host]]
        return host

    joined = [hosts[island] for island in links.within_island if island in hosts]
    if links.between and len(hosts) > 1:
        joined.append(list(links.island))
    joined += [[*hosts.get(src, [src]), *hosts.get(dst, [dst])] for src, dst in links.rules]
    for first, *others in joined:
        for host in others:
            root[find(host)] = find(first)
    pieces: dict[str, list[str]] = {}
    for island, members in hosts.items():
        roots = {find(host) for host in members}
        for name in [island] if len(roots) == 1 else members:
            pieces.setdefault(find(members[0] if name == island else name), []).append(name)
    return [", ".join(names) for names in pieces.values()]
