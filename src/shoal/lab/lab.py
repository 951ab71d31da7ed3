"""A lab as its user holds it: bring one up, run programs on its hosts, change its links, take it down."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from shoal import schema
from shoal.cluster import Cluster
from shoal.errors import LabGone, ShoalError, UserError
from shoal.lab.blueprint import Settings, addresses, blueprint
from shoal.lab.namespaces import processes_in
from shoal.lab.script import Change

UP_SECONDS = 60.0
ORDER_SECONDS = 10.0
DOWN_SECONDS = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Lab:
    """A lab that is up, or was: everything asked of one that is gone raises `LabGone`.

    Args:
        folder: holds the socket for orders, the hosts' names and the switch's log.
        nets: host → path of its network namespace.
        addresses: host → IPv4 and IPv6 address.
    """

    name: str
    folder: Path
    pid: int
    user: str | None
    nets: Mapping[str, str]
    inodes: tuple[int, ...]
    addresses: Mapping[str, tuple[str, str]]
    priority: str
    notes: tuple[str, ...]

    @property
    def hosts(self) -> tuple[str, ...]:
        return tuple(self.nets)

    def command(self, host: str, program: Sequence[str]) -> list[str]:
        """The argument vector that runs `program` on `host`."""
        self._known(host)
        return [sys.executable, "-m", "shoal.lab.enter", str(self.folder), host, "--", *program]

    def change(self, change: Change) -> None:
        """Do `change` now."""
        for place in (change.host, change.from_, change.to):
            if place is not None:
                self._known(place)
        self.order(**change.order())

    def play(self, changes: Sequence[Change]) -> None:
        """Do each of `changes` at its time, counted from now."""
        self.order(do="play", changes=[change.order() for change in changes])

    def status(self) -> dict[str, Any]:
        """What `shoal lab status --json` prints: hosts, ways, packets, and how late the switch has been."""
        return self.order(do="status")

    def alive(self) -> bool:
        """Whether its switch is there."""
        return _is_switch(self.pid, self.folder)

    def down(self) -> None:
        """End everything that lives on the hosts, and the lab. One that is gone already is cleaned up after."""
        with contextlib.suppress(ShoalError):
            self.order(do="down")
        until = monotonic() + DOWN_SECONDS
        while self.alive() and monotonic() < until:
            sleep(0.01)
        if self.alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        for pid in _leftovers(self.name, set(self.inodes)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)

    def order(self, **asked: Any) -> Any:
        """One order to the switch, and its answer.

        Raises:
            LabGone: it does not answer.
            UserError: it refuses.
        """
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(ORDER_SECONDS)
                connection.connect(str(self.folder / "orders"))
                connection.sendall(json.dumps(asked).encode() + b"\n")
                with connection.makefile("rb") as answers:
                    answer = json.loads(answers.readline())
        except (OSError, ValueError) as error:
            raise LabGone(f"the lab {self.name!r} does not answer: {error}") from None
        if "error" in answer:
            raise UserError(**answer["error"])
        return answer["ok"]

    def _known(self, host: str) -> None:
        if host not in self.nets:
            raise UserError("no such host", value=host, mend=schema.nearest(host, list(self.nets)))


@contextmanager
def up(cluster: Cluster, settings: Settings | None = None, *, name: str | None = None) -> Iterator[Lab]:
    """A lab for as long as this is entered; it ends with this process, too, however that ends.

    Raises:
        UserError: this system cannot have one, or there is one of this name.
    """
    lab, process = _start(cluster, settings or Settings(), name, detached=False)
    try:
        yield lab
    finally:
        lab.down()
        assert process.stdin is not None
        process.stdin.close()
        process.wait()


def start(cluster: Cluster, settings: Settings | None = None, *, name: str | None = None) -> Lab:
    """A lab that stays until somebody takes it down."""
    return _start(cluster, settings or Settings(), name, detached=True)[0]


def running() -> list[Lab]:
    """All labs of this user that have left a trace, those whose switch is gone too; sorted by name."""
    found = []
    for folder in sorted(_root().iterdir()):
        with contextlib.suppress(OSError, ValueError, TypeError):
            found.append(_read(folder))
    return found


def find(name: str | None = None) -> Lab:
    """The lab called `name`, or the only one there is.

    Raises:
        UserError: there is none, or several and no name.
    """
    labs = {lab.name: lab for lab in running() if lab.alive()}
    if not labs:
        raise UserError("no lab is up", mend="shoal lab up CLUSTER.toml")
    if name is None and len(labs) > 1:
        raise UserError(f"{len(labs)} labs are up", mend=f"say which with --lab: {', '.join(labs)}")
    name = name or next(iter(labs))
    if name not in labs:
        raise UserError("no such lab", value=name, mend=schema.nearest(name, list(labs)))
    return labs[name]


def _start(
    cluster: Cluster, settings: Settings, name: str | None, *, detached: bool
) -> tuple[Lab, subprocess.Popen[bytes]]:
    if sys.platform != "linux":
        raise UserError("a lab needs Linux", value=sys.platform, mend="rehearse in virtual time (shoal simulate)")
    plan = blueprint(cluster, settings)
    folder = _fresh_folder(cluster.name, name)
    try:
        lab, process = _bring_up(cluster, plan, folder, detached=detached)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return lab, process


def _bring_up(
    cluster: Cluster, plan: dict[str, Any], folder: Path, *, detached: bool
) -> tuple[Lab, subprocess.Popen[bytes]]:
    at = addresses(cluster)
    names = "".join(f"{address} {host}\n" for host, both in at.items() for address in both)
    (folder / "hosts").write_text(f"127.0.0.1 localhost\n::1 localhost\n{names}", encoding="utf-8")
    argv = [sys.executable, "-m", "shoal.lab.switch", str(folder), *(["--detached"] if detached else [])]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, start_new_session=True, bufsize=0
        )
    assert process.stdin is not None and process.stdout is not None
    try:
        process.stdin.write(json.dumps(plan).encode() + b"\n")
        told = json.loads(_first_line(process) or b"{}")
        if "error" in told:
            raise UserError(**told["error"])
        if "pid" not in told:
            raise LabGone(f"the lab did not come up: {_last_words(folder / 'log')}")
        lab = {"name": folder.name, "addresses": at, "folder": str(folder), **told}
        aside = folder / "lab.json.tmp"
        aside.write_text(json.dumps(lab), encoding="utf-8")
        aside.rename(folder / "lab.json")
        return _read(folder), process
    except BaseException:
        process.kill()
        process.wait()
        raise
    finally:
        process.stdout.close()


def _first_line(process: subprocess.Popen[bytes]) -> bytes:
    assert process.stdout is not None
    until, heard = monotonic() + UP_SECONDS, b""
    while not heard.endswith(b"\n"):
        ready, _, _ = select.select([process.stdout], (), (), max(0.0, until - monotonic()))
        chunk = os.read(process.stdout.fileno(), 1 << 20) if ready else b""
        if not chunk:
            return b""
        heard += chunk
    return heard


def _last_words(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"


def _read(folder: Path) -> Lab:
    told = json.loads((folder / "lab.json").read_text(encoding="utf-8"))
    return Lab(
        name=told["name"],
        folder=folder,
        pid=told["pid"],
        user=told["user"],
        nets=told["nets"],
        inodes=tuple(told["inodes"]),
        addresses={host: tuple(both) for host, both in told["addresses"].items()},
        priority=told["priority"],
        notes=tuple(told["notes"]),
    )


def _root() -> Path:
    """Where this user's labs keep their folders. What is in it ends with the machine's uptime, like the labs."""
    base = os.environ.get("XDG_RUNTIME_DIR")
    root = Path(base) / "shoal-labs" if base else Path(tempfile.gettempdir()) / f"shoal-labs-{os.getuid()}"
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    if root.stat().st_uid != os.getuid():
        raise UserError("this folder belongs to somebody else", value=str(root), mend="set XDG_RUNTIME_DIR")
    return root


def _fresh_folder(cluster: str, name: str | None) -> Path:
    """A new folder; its name is the lab's. Without a `name` the cluster's is used, with a number if it is taken."""
    root = _root()
    number = 1
    while True:
        folder = root / (name or (cluster if number == 1 else f"{cluster}-{number}"))
        try:
            folder.mkdir()
            return folder
        except FileExistsError:
            if (folder / "lab.json").exists() and not (old := _read(folder)).alive():
                old.down()
                continue
            if name is not None:
                mend = f"shoal lab down {name}, or another --name"
                raise UserError("there is a lab of this name", value=name, mend=mend) from None
            number += 1


def _is_switch(pid: int, folder: Path) -> bool:
    """Whether process `pid` is the switch of the lab in `folder` (numbers are used again)."""
    try:
        line = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return b"shoal.lab.switch" in line and str(folder).encode() in line


def _leftovers(name: str, inodes: set[int]) -> list[int]:
    """Processes that lived in a lab whose switch is gone: in its namespaces, and told by it that they are."""
    found = []
    mark = f"SHOAL_LAB={name}".encode()
    for pid in processes_in(inodes):
        with contextlib.suppress(OSError):
            if mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                found.append(pid)
    return found
