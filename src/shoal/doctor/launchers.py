"""What launchers have left in the environment: where workers meet, and which ones there are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from shoal.doctor.finding import Finding, fail, ok, warn
from shoal.errors import UserError
from shoal.launch.torchrun import place
from shoal.worlds.rendezvous import from_environment

_WHO, _WHERE = ("RANK", "WORLD_SIZE"), ("MASTER_ADDR", "MASTER_PORT")
_MEND = "start workers with torchrun, which sets all four; or unset them"


def check_launcher(environment: Mapping[str, str]) -> Iterator[Finding]:
    """Judge the variables that say where workers meet, and who they are."""
    there = [key for key in (*_WHO, *_WHERE) if environment.get(key)]
    missing = ", ".join(key for key in (*_WHO, *_WHERE) if key not in there)
    said = f"{', '.join(there)} set, but not {missing}"
    who, where = (sum(key in there for key in keys) for keys in (_WHO, _WHERE))
    if not there:
        yield from _slurm(environment)
    elif who == 1:
        yield fail("launcher", f"{said}: each worker would train alone", _MEND)
    elif who == 0:
        yield warn("launcher", f"{said}: Shoal would train on this machine alone", _MEND)
    elif where < len(_WHERE):
        yield fail("launcher", f"{said}: the workers would not find one another", _MEND)
    else:
        yield _whole(environment)


def _whole(environment: Mapping[str, str]) -> Finding:
    try:
        here, meeting = place(environment), from_environment(environment)
    except UserError as error:
        return fail("launcher", str(error), error.mend)
    assert here is not None
    return ok("launcher", f"rank {here.rank} of {here.size}, meeting at {meeting}")


def _slurm(environment: Mapping[str, str]) -> Iterator[Finding]:
    """Slurm has its own names for what torchrun sets."""
    tasks = environment.get("SLURM_NTASKS", "")
    if "SLURM_PROCID" in environment and tasks.isdigit() and int(tasks) > 1:
        yield warn(
            "launcher",
            f"Slurm has started {tasks} tasks, but RANK is not set: each would train alone",
            "export RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS, and MASTER_ADDR and MASTER_PORT of the first",
        )
