"""One peer's share of a survey, in a process of its own: it finds the others and measures."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime

from shoal.launch.torchrun import Place
from shoal.probe.figures import Settings, Survey
from shoal.probe.here import about_me, find_device
from shoal.probe.protocol import Progress, survey
from shoal.world import Peer, World
from shoal.worlds.process import run_process

START_SECONDS = 300.0
"""How long the processes wait for one another: they may be started by hand, on many machines."""


def take_part(
    me: Peer,
    peers: Sequence[Peer],
    *,
    kind: str | None,
    number: int,
    threads: int,
    settings: Settings,
    names: Mapping[Peer, tuple[str, str]] | None = None,
    pace: tuple[float, float] | None = None,
    tell_progress: Callable[[Progress], None] = lambda progress: None,
) -> Survey | None:
    """Be `me` in a survey of all `peers`; gives the survey at the first of them, None elsewhere.

    Args:
        kind: of the device; None takes a GPU if there is one.
        number: which of this machine's devices of that kind.
        threads: of a CPU.
        names: as in `shoal.probe.survey`.
        pace: FLOP/s and bytes/s to which computations are stretched.
    """
    device = find_device(kind, number)

    async def program(world: World) -> Survey | None:
        about = about_me(device)
        return await survey(world, about, settings, names=names, wall=_wall, tell_progress=tell_progress)

    return run_process(
        program,
        me=me,
        peers=peers,
        device=device,
        threads=threads,
        wait_deadline=settings.patience,
        start_deadline=START_SECONDS,
        seconds=None if pace is None else (lambda work: max(work.flops / pace[0], work.touched_bytes / pace[1])),
    )


def rank_peers(size: int) -> list[Peer]:
    """Names for the processes that torchrun or the like has started, in the order of their ranks.

    A later `shoal train` under the same launcher gives rank n the n-th device in the order of names: so the devices are
    called like this, not after their hosts.
    """
    width = len(str(size - 1))
    return [f"worker-{rank:0{width}d}" for rank in range(size)]


def as_rank(
    here: Place,
    *,
    settings: Settings,
    kind: str | None = None,
    names: Mapping[Peer, tuple[str, str]] | None = None,
    threads: int | None = None,
    tell_progress: Callable[[Progress], None] = lambda progress: None,
) -> Survey | None:
    """Be one of the processes that torchrun or the like has started; the first one gets the survey."""
    peers = rank_peers(here.size)
    together = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return take_part(
        peers[here.rank],
        peers,
        kind=kind,
        number=here.local,
        threads=threads or max(1, (os.cpu_count() or 1) // together),
        settings=settings,
        names=names,
        tell_progress=tell_progress,
    )


def _wall() -> float:
    return datetime.now(UTC).timestamp()
