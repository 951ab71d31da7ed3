"""A survey in child processes of this one: on this machine, or wherever a command wrapper puts them."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from shoal.errors import ShoalError
from shoal.launch.processes import Ending, launch
from shoal.probe.figures import Settings, Survey
from shoal.probe.protocol import Progress
from shoal.worker import Report, RunFolder
from shoal.world import Peer

STOP_GRACE = 2.0
"""Seconds that the processes have after Ctrl-C; they end at once unless they are stuck in a call."""

__all__ = ["Progress", "Spec", "measure"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """What every peer of a survey must know.

    Args:
        kinds, numbers: peer → its device's kind (absent: a GPU if there is one), and which of those it is.
        names: peer → (device, host), as a person calls them.
        paces: peer → FLOP/s and bytes/s of a device that is not here: computations are stretched to them.
    """

    peers: Sequence[Peer]
    settings: Settings = field(default_factory=Settings)
    threads: int = 1
    kinds: Mapping[Peer, str] = field(default_factory=dict)
    numbers: Mapping[Peer, int] = field(default_factory=dict)
    names: Mapping[Peer, tuple[str, str]] = field(default_factory=dict)
    paces: Mapping[Peer, tuple[float, float]] = field(default_factory=dict)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Spec:
        raw = json.loads(text)
        names = {peer: (device, host) for peer, (device, host) in raw["names"].items()}
        return cls(**{**raw, "settings": Settings(**raw["settings"]), "names": names})


def measure(
    peers: Sequence[Peer],
    *,
    wrap: Callable[[Peer], Sequence[str]] = lambda peer: (),
    environment: Callable[[Peer], Mapping[str, str]] = lambda peer: {},
    settings: Settings | None = None,
    progress: Callable[[Progress], None] = lambda progress: None,
    threads: int = 1,
    kinds: Mapping[Peer, str] | None = None,
    numbers: Mapping[Peer, int] | None = None,
    names: Mapping[Peer, tuple[str, str]] | None = None,
    paces: Mapping[Peer, tuple[float, float]] | None = None,
) -> Survey:
    """Run a survey of `peers`, each in a child process, and return it. Leaves no process behind, whatever happens.

    Args:
        wrap: peer → what to put before its command (``["ip", "netns", "exec", "oslo"]``).
        environment: peer → variables of its process. ``MASTER_ADDR`` and ``MASTER_PORT`` say where the peers meet if
            that cannot be a port of this machine's loopback; then the first peer keeps the store there.
        progress: called after every measurement.
        threads: CPU threads of each peer.
        kinds, numbers, names, paces: as in `Spec`.

    Raises:
        ShoalError: a peer failed, or a signal stopped it all; `exit_status` is what a command should end with.
    """
    spec = Spec(
        peers=sorted(peers),
        settings=settings or Settings(),
        threads=threads,
        kinds=kinds or {},
        numbers=numbers or {},
        names=names or {},
        paces=paces or {},
    )
    found: list[Survey] = []

    def tell(report: Report) -> None:
        if report.kind == "done":
            found.append(Survey.from_json(report.fields))
        else:
            progress(Progress(**report.fields))

    with tempfile.TemporaryDirectory(prefix="shoal-probe-") as root:
        folder = RunFolder(Path(root)).make()
        file = folder.root / "probe.json"
        file.write_text(spec.to_json(), encoding="utf-8")

        def command(peer: Peer) -> list[str]:
            child = [sys.executable, "-m", "shoal.probe.child", str(file), peer]
            return [*wrap(peer), *_with(environment(peer)), *child]

        ending = launch(folder, spec.peers, threads=threads, stop_grace=STOP_GRACE, tell=tell, command=command)
    if ending.exit_status != 0 or not found:
        raise _error(ending)
    return found[0]


def _with(variables: Mapping[str, str]) -> list[str]:
    """A command prefix that sets these variables, after a wrapper that may not pass the environment on."""
    if not variables:
        return []
    own_store = {"TORCHELASTIC_USE_AGENT_STORE": "False"} if "MASTER_ADDR" in variables else {}
    return ["env", *(f"{name}={value}" for name, value in {**own_store, **variables}.items())]


def _error(ending: Ending) -> ShoalError:
    """Why there is no survey."""
    if ending.signal is not None:
        error = ShoalError("stopped before everything was measured; nothing was written")
    elif ending.failures:
        error = ShoalError(
            "; ".join(f"{failed.peer}: {failed.text}" for failed in ending.failures if failed.cause)
            or f"{ending.failures[0].peer}: {ending.failures[0].text}"
        )
    else:
        error = ShoalError("the survey ended without a result")
    error.exit_status = ending.exit_status or 1
    return error
