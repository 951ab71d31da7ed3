"""From the cluster file to the resolved `Cluster`: groups expanded, names looked up, defaults filled in, gaps found."""

from __future__ import annotations

from pathlib import Path

from shoal import schema
from shoal.cluster.cluster import Cluster, Device, Host, Island
from shoal.cluster.file import ClusterFile, DeviceTable, HostTable
from shoal.cluster.links import fastest, resolve_links
from shoal.errors import UserError
from shoal.files import Source, check
from shoal.toml import KeyPath

MEMORY_BANDWIDTH = {"cpu": 20e9}
OTHER_MEMORY_BANDWIDTH = 400e9
"""Assumed where the file does not say: two channels of DDR4, and a mid-range GPU. Bytes/s."""

ONLY_ISLAND = "main"
"""The island of a cluster file that has none."""


def load(path: str | Path) -> Cluster:
    """The cluster in the file at `path`.

    Raises:
        UserError: names file, line, key, value and mend of every problem.
    """
    return _build(Source.read(path), name=Path(path).stem)


def parse(text: str, *, file: str = "cluster.toml") -> Cluster:
    """The cluster that the text of a cluster file describes; `file` names it in errors."""
    return _build(Source.parse(text, file=file), name=Path(file).stem)


def _build(source: Source, *, name: str) -> Cluster:
    spec = source.validate(ClusterFile)
    places = _Places(source, spec)
    places.islands_and_hosts()
    places.devices()
    check(places.problems, file=source.file)
    links = resolve_links(source, spec, places.island, places.members)
    limits = fastest(links)
    memory = dict.fromkeys(places.island, 0.0)
    for device in places.made:
        memory[device.host] += device.memory_bytes
    return Cluster(
        name=spec.name or name,
        devices=tuple(places.made),
        hosts={host: _host(host, places, limits[host], memory[host]) for host in places.island},
        islands={island: Island(name=island, number=n) for n, island in enumerate(places.islands)},
        links=links,
    )


def expand(name: str, count: int) -> list[str]:
    """``gpu`` × 12 → ``gpu-00`` … ``gpu-11``; a single one keeps the plain name."""
    width = len(str(count - 1))
    return [name] if count == 1 else [f"{name}-{n:0{width}d}" for n in range(count)]


class _Places:
    """Who is where. Fills its public attributes and collects `problems`.

    Attributes:
        islands: names, in the order of the file.
        island: host → its island.
        tables: host → its ``[[host]]``, where it has one.
        members: name that the file uses for hosts → the hosts it stands for.
        made: the devices.
    """

    def __init__(self, source: Source, spec: ClusterFile) -> None:
        self.source, self.spec = source, spec
        self.problems: list[UserError] = []
        self.islands = list(dict.fromkeys(table.name for table in spec.island)) or [ONLY_ISLAND]
        self.island: dict[str, str] = {}
        self.tables: dict[str, HostTable] = {}
        self.members: dict[str, list[str]] = {}
        self.made: list[Device] = []
        self._places: dict[str, KeyPath] = {}  # names of islands and hosts → where they were given
        self._devices: dict[str, KeyPath] = {}

    def islands_and_hosts(self) -> None:
        for n, table in enumerate(self.spec.island):
            self._claim(self._places, table.name, ("island", n, "name"))
        for n, table in enumerate(self.spec.host):
            island = self._island(table.island, ("host", n))
            hosts = expand(table.name, table.count)
            for host in hosts:
                self._add_host(host, island, ("host", n, "name"))
                self.tables[host] = table
            self.members.setdefault(table.name, hosts)

    def devices(self) -> None:
        for n, table in enumerate(self.spec.device):
            placed = self._on_hosts(table, n) if table.host else self._own_hosts(table, n)
            for device, host in placed:
                if self._claim(self._devices, device, ("device", n, "name")):
                    self.made.append(_device(device, host, table))
        if not self.problems:
            self._find_unused()

    def _find_unused(self) -> None:
        used = {device.host for device in self.made}
        for n, table in enumerate(self.spec.host):
            for host in [host for host in expand(table.name, table.count) if host not in used][:1]:
                mend = f'write a [[device]] with host = "{table.name}"'
                self._problem(("host", n), f"no device is on host {host!r}", mend)
        for n, table in enumerate(self.spec.island):
            if table.name not in self.island.values():
                mend = f'write a [[device]] or [[host]] with island = "{table.name}"'
                self._problem(("island", n), f"no host is on island {table.name!r}", mend)

    def _on_hosts(self, table: DeviceTable, n: int) -> list[tuple[str, str]]:
        """(device, host) for a ``[[device]]`` that names its host or group of hosts."""
        if table.island is not None:
            self._problem(("device", n, "island"), "a device with a host is on its host's island", "leave it out")
        hosts = self.members.get(table.host or "")
        if hosts is None:
            mend = schema.nearest(table.host, list(self.members)) or "write a [[host]], or leave it out"
            self._problem(("device", n, "host"), "no such host", mend)
            return []
        per_host = table.per_host or max(1, (table.count or 0) // len(hosts))
        if table.count is not None and table.count != per_host * len(hosts):
            mend = f"write {per_host * len(hosts)} ({per_host} on each of {len(hosts)} hosts), or leave it out"
            self._problem(("device", n, "count"), "does not fit the hosts", mend)
        names = expand(table.name, per_host * len(hosts))
        return [(device, hosts[k // per_host]) for k, device in enumerate(names)]

    def _own_hosts(self, table: DeviceTable, n: int) -> list[tuple[str, str]]:
        """(device, host) for a ``[[device]]`` that makes its own hosts, in an island."""
        per_host = table.per_host or 1
        count = table.count or per_host
        if count % per_host:
            self._problem(("device", n, "count"), f"does not fill hosts of {per_host}", "write a multiple of per_host")
            return []
        island = self._island(table.island, ("device", n))
        devices = expand(table.name, count)
        hosts = devices if per_host == 1 else expand(f"{table.name}-host", count // per_host)
        for host in hosts:
            self._add_host(host, island, ("device", n, "name"))
        if table.name not in self.islands:  # a link from this name would mean the island
            self.members.setdefault(table.name, hosts)
        return [(device, hosts[k // per_host]) for k, device in enumerate(devices)]

    def _island(self, said: str | None, path: KeyPath) -> str:
        """The island that a table names, or the only one there is."""
        if said is None and len(self.islands) > 1:
            mend = f"write island = {schema.one_of([repr(name) for name in self.islands])}"
            self._problem((*path, "island"), "the island is missing", mend)
        elif said is not None and said not in self.islands:
            mend = schema.nearest(said, self.islands) if self.spec.island else f'add [[island]] with name = "{said}"'
            self._problem((*path, "island"), "no such island", mend)
        return said or self.islands[0]

    def _add_host(self, host: str, island: str, path: KeyPath) -> None:
        if self._claim(self._places, host, path):
            self.island[host] = island
            self.members[host] = [host]

    def _claim(self, taken: dict[str, KeyPath], name: str, path: KeyPath) -> bool:
        """Note that `name` is used at `path`; complain, with both lines, if it is not new."""
        if name not in taken:
            taken[name] = path
            return True
        first = taken[name]
        line = self.source.line(first)
        where = f"the [[{first[0]}]]" + (f" on line {line}" if line else "")
        self._problem(path, f"{name!r} is already the name of {where}", "every name must be unique")
        return False

    def _problem(self, path: KeyPath, problem: str, mend: str) -> None:
        told = self.source.error(path, problem, mend=mend)
        if str(told) not in map(str, self.problems):  # a device that is its own host has one name for both
            self.problems.append(told)


def _device(name: str, host: str, table: DeviceTable) -> Device:
    assumed = MEMORY_BANDWIDTH.get(table.kind, OTHER_MEMORY_BANDWIDTH)
    return Device(
        name=name,
        host=host,
        kind=table.kind,
        flops=table.speed,
        memory_bytes=float(table.memory),
        memory_bandwidth_bytes_per_s=table.memory_bandwidth or assumed,
    )


def _host(name: str, places: _Places, fastest: tuple[float, float], memory: float) -> Host:
    """The host; what its table leaves out is as fast as its `fastest` links (out, in) and has its devices' `memory`."""
    table = places.tables.get(name)
    return Host(
        name=name,
        island=places.island[name],
        up_bytes_per_s=(table and table.up) or fastest[0],
        down_bytes_per_s=(table and table.down) or fastest[1],
        memory_bytes=float((table and table.memory) or memory),
        price_per_hour=table.price_per_hour if table else 0.0,
    )
