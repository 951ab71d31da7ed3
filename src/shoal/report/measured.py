"""What a run folder says about time, bytes and losses, step by step, whatever world the run lived in.

Everything comes from the files that a run leaves also when it is killed: the event log and the spans of each peer, of
the newest session. What is missing, empty or torn is left out and noted.
"""

from __future__ import annotations

import json
import math
import statistics
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.errors import UserError
from shoal.launch.logs import last_session, read_events
from shoal.launch.prepare import Prepared, read
from shoal.report.lanes import WARMUP, Ends, Step, timed_steps
from shoal.report.summary import PACE_DEBT_LIMIT
from shoal.trace import Event
from shoal.worker import RunFolder

SIMULATED = ("virtual", "timing")
UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One run. Seconds and bytes are of the world that the run lived in.

    Args:
        world: ``processes``, ``lab``, ``virtual``, ``timing``, or ``"unknown"``.
        status: as in its summary; ``"unknown"`` for a run that did not live to write one.
        cluster_name: as its cluster file says.
        job: dotted key → value as in the run's own job file, in which every key is written out.
        cluster: the same of its cluster file; ``device[a].speed``.
        peers: those of the plan.
        steps: the numbers of the steps that some peer logged in the newest session.
        losses: step → peer → (sum of losses, weight). Steps that computed no values (timing mode) have none.
        held_out: step → held-out loss, nats per token.
        timed: peer → step → what is known of it, without each peer's first `WARMUP` steps.
        interrupted: steps before which this run evaluated or saved a checkpoint, which counts as part of their time.
        spans: how many there are, `empty_spans` without a duration among them.
        notes: what is missing or odd.
    """

    folder: str
    world: str
    status: str
    cluster_name: str
    job: Mapping[str, Any]
    cluster: Mapping[str, Any]
    peers: tuple[str, ...]
    steps: tuple[int, ...]
    losses: Mapping[int, Mapping[str, tuple[float, float]]]
    held_out: Mapping[int, float]
    timed: Mapping[str, Mapping[int, Step]]
    interrupted: frozenset[int]
    spans: int
    empty_spans: int
    notes: tuple[str, ...]

    @property
    def simulated(self) -> bool:
        return self.world in SIMULATED

    @property
    def timed_steps(self) -> frozenset[int]:
        """Steps that at least one peer timed."""
        return frozenset(step for steps in self.timed.values() for step in steps)

    @property
    def median_step_s(self) -> float | None:
        """Over all timed steps of all peers; None where there are none."""
        times = [step.seconds for steps in self.timed.values() for step in steps.values()]
        return statistics.median(times) if times else None


def summarise(folder: RunFolder) -> Measured:
    """Read the newest session of a run.

    Raises:
        UserError: `folder` is not the folder of a run.
    """
    prepared = _read(folder)
    peers = prepared.plan.peers
    logs = last_session({peer: read_events(folder.events(peer)) for peer in peers})
    ends = {peer: _ends(logs[peer]) for peer in peers}
    steps = sorted({step for found in ends.values() for step in found})
    summary, losses = _summary(folder, steps), _losses(logs)
    world = _world(folder, prepared, summary, timing=bool(steps) and not losses)
    notes = [*_told_by_logs(folder, ends, logs)]
    if "status" not in summary:
        notes.append("no summary of the newest session: killed, or still running")
    timed, count, empty = timed_steps(folder, ends, notes)
    if steps and not any(timed.values()):
        notes.append(f"nothing to time: no worker logged more than the {WARMUP} steps of warm-up")
    return Measured(
        folder=str(folder.root),
        world=world,
        status=str(summary.get("status", UNKNOWN)),
        cluster_name=prepared.cluster.name,
        job=flat(_toml(folder.job)),
        cluster=flat(_toml(folder.cluster)),
        peers=tuple(peers),
        steps=tuple(steps),
        losses=losses,
        held_out=_held_out(folder, summary),
        timed=timed,
        interrupted=frozenset() if world == "timing" else _interrupted(prepared, steps),
        spans=count,
        empty_spans=empty,
        notes=tuple(notes),
    )


def run_folder(path: Path) -> RunFolder:
    """The run at `path`, or the newest one if `path` holds several (``runs/job``).

    Raises:
        UserError: there is none.
    """
    folder = RunFolder(path)
    found = folder if folder.job.is_file() else RunFolder.latest(path.parent, path.name)
    if found is None:
        problem = "not a run: it has no job.toml" if path.is_dir() else "no such folder"
        raise UserError(problem, file=str(path), mend="name a folder like runs/job/1")
    return found


def flat(value: Any, prefix: str = "") -> dict[str, Any]:
    """Tables as dotted keys; an entry of an array of tables goes by its name: ``device[a].speed``."""
    if isinstance(value, Mapping) and value:
        return {key: v for name, inner in value.items() for key, v in flat(inner, _join(prefix, name)).items()}
    if isinstance(value, list) and value and all(isinstance(entry, Mapping) for entry in value):
        named = {f"{prefix}[{_entry_name(entry, n)}]": entry for n, entry in enumerate(value)}
        return {key: v for name, entry in named.items() for key, v in flat(entry, name).items()}
    return {prefix: value}


def _join(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix else name


def _entry_name(entry: Mapping[str, Any], number: int) -> str:
    if "from" in entry and "to" in entry:
        return f"{entry['from']} to {entry['to']}"
    return str(entry.get("name", number))


def _read(folder: RunFolder) -> Prepared:
    try:
        return read(folder)
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        mend = "name another run; this one's job.toml, cluster.toml or plan.json was cut or changed"
        raise UserError(f"cannot be read as a run ({error})", file=str(folder.root), mend=mend) from error


def _toml(path: Path) -> dict[str, Any]:
    return tomllib.loads(path.read_text(encoding="utf-8"))


def _ends(events: Sequence[Event]) -> Ends:
    """Step → when it ended."""
    return {event.fields["step"]: event.at for event in _steps(events)}


def _steps(events: Sequence[Event]) -> Iterator[Event]:
    """The whole ``step`` events among them."""
    for event in events:
        if event.kind == "step" and isinstance(event.fields.get("step"), int) and math.isfinite(event.at):
            yield event


def _losses(logs: Mapping[str, Sequence[Event]]) -> dict[int, dict[str, tuple[float, float]]]:
    found: dict[int, dict[str, tuple[float, float]]] = {}
    for peer, events in logs.items():
        for event in _steps(events):
            with suppress(KeyError, TypeError, ValueError):
                loss, weight = float.fromhex(event.fields["loss"]), float(event.fields["weight"])
                if weight > 0:
                    found.setdefault(event.fields["step"], {})[peer] = (loss, weight)
    return dict(sorted(found.items()))


def _told_by_logs(folder: RunFolder, ends: Mapping[str, Ends], logs: Mapping[str, Sequence[Event]]) -> Iterator[str]:
    """What the event logs lack, who was lost, and whose pace was not kept."""
    last = max((step for found in ends.values() for step in found), default=None)
    for peer, found in ends.items():
        if not found:
            yield f"{peer} logged no step in the newest session ({_what_is_wrong(folder.events(peer))})"
        elif last is not None and max(found) < last:
            yield f"{peer} logged nothing after step {max(found)}, others went on to step {last}"
    lost = {str(event.fields.get("peer")) for events in logs.values() for event in events if event.kind == "peer-lost"}
    yield from (f"{peer} was lost" for peer in sorted(lost))
    debts = {peer: _debt(event) for peer, events in logs.items() for event in events if event.kind == "pace"}
    worst = max(debts, key=lambda peer: debts[peer], default=None)
    if worst is not None and debts[worst] > PACE_DEBT_LIMIT:
        yield f"the pace was not kept: {worst} computed {debts[worst]:.0%} longer than its device would"


def _what_is_wrong(path: Path) -> str:
    """Why nothing was found in the file at `path`."""
    name = f"{path.parent.name}/{path.name}"
    if not path.exists():
        return f"{name} is missing"
    return f"nothing of use in {name}" if path.stat().st_size else f"{name} is empty"


def _debt(event: Event) -> float:
    asked, owed = event.fields.get("asked_s"), event.fields.get("debt_s")
    return owed / asked if isinstance(owed, int | float) and isinstance(asked, int | float) and asked else 0.0


def _summary(folder: RunFolder, steps: Sequence[int]) -> dict[str, Any]:
    """The run's summary; of one that an earlier session wrote, only its world; empty if there is none."""
    with suppress(OSError, ValueError):
        found = json.loads(folder.summary.read_text(encoding="utf-8"))
        if isinstance(found, dict):
            stale = found.get("status") == "done" and bool(steps) and found.get("step", steps[-1] + 1) <= steps[-1]
            return {"world": found.get("world", UNKNOWN)} if stale else found
    return {}


def _world(folder: RunFolder, prepared: Prepared, summary: Mapping[str, Any], *, timing: bool) -> str:
    """As the summary says; else as the folder's name does (``runs/job-lab/3``), which is where `prepare` put it."""
    if "world" in summary:
        return str(summary["world"])
    name, above = prepared.job.name, folder.root.resolve().parent.name
    named = {name: "processes", f"{name}-lab": "lab", f"{name}-virtual": "timing" if timing else "virtual"}
    return named.get(above, UNKNOWN)


def _held_out(folder: RunFolder, summary: Mapping[str, Any]) -> dict[int, float]:
    found: dict[int, float] = {}
    with suppress(OSError):
        for line in folder.metrics.read_bytes().splitlines():
            with suppress(ValueError, TypeError, KeyError):
                told = json.loads(line)
                if told["kind"] == "eval" and told["loss"] is not None:
                    found[int(told["step"])] = float(told["loss"])
    if not found and isinstance(summary.get("held_out_loss"), int | float):
        found[int(summary.get("step", 0))] = float(summary["held_out_loss"])
    return found


def _interrupted(prepared: Prepared, steps: Sequence[int]) -> frozenset[int]:
    run = prepared.job.run
    every = [n for n in (run.eval_every, run.checkpoint_every) if n]
    return frozenset(step for step in steps if step and any(step % n == 0 for n in every))
