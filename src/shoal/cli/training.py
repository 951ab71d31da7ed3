"""``shoal train`` and ``shoal simulate``: run a job, in processes or in virtual time."""

from __future__ import annotations

import enum
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli.completion import complete_key, complete_run, complete_toml
from shoal.errors import UserError

if TYPE_CHECKING:
    from shoal.launch.prepare import Prepared

TRAIN_EXAMPLES = """\
\b
Examples:
  shoal train job.toml
  shoal train job.toml --steps 50 --set optimizer.lr=3e-4 --set mixing.name=gossip
  shoal train job.toml --resume
  shoal train job.toml --world lab --script outage.toml
  torchrun --nproc-per-node 4 -m shoal train job.toml
"""
SIMULATE_EXAMPLES = """\
\b
Examples:
  shoal simulate job.toml
  shoal simulate job.toml --timing --cluster big.toml --steps 10
"""


class World(enum.StrEnum):
    """Where the workers live."""

    processes = "processes"
    lab = "lab"
    virtual = "virtual"


JobFile = Annotated[Path, typer.Argument(metavar="JOB", help="The job file.", autocompletion=complete_toml)]
Resume = Annotated[bool, typer.Option("--resume", help="Go on from the newest run's last whole checkpoint.")]
Steps = Annotated[
    int | None, typer.Option("--steps", min=1, help="Steps to train in all; short for --set run.steps=N.")
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Overrule a key of the job; repeatable.", autocompletion=complete_key
    ),
]
ClusterFile = Annotated[
    Path | None,
    typer.Option("--cluster", help="Instead of the cluster that the job names.", autocompletion=complete_toml),
]
Workers = Annotated[
    int | None, typer.Option("--workers", min=1, help="Equal workers on this machine, for a job without a cluster.")
]
Runs = Annotated[Path, typer.Option("--runs", help="Folder of all runs.", autocompletion=complete_run)]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON lines: the reports, then the summary.")]


def add_to(app: typer.Typer) -> None:
    app.command(epilog=TRAIN_EXAMPLES, short_help="Train a job, one process per device.")(train)
    app.command(epilog=SIMULATE_EXAMPLES, short_help="Rehearse a job in virtual time.")(simulate)


def train(
    job: JobFile,
    world: Annotated[
        World,
        typer.Option(
            "--world",
            help="Real processes on this machine; the same behind the cluster's own slow links (lab);"
            " or all workers in virtual time.",
        ),
    ] = World.processes,
    script: Annotated[
        Path | None,
        typer.Option("--script", help="What happens to the lab, and when (TOML).", autocompletion=complete_toml),
    ] = None,
    pace: Annotated[
        bool, typer.Option("--pace/--no-pace", help="In a lab, compute as slowly as the cluster's devices.")
    ] = True,
    resume: Resume = False,
    steps: Steps = None,
    overrides: Set = None,
    cluster: ClusterFile = None,
    workers: Workers = None,
    runs: Runs = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """Train a job: one process per device of its cluster, on this machine.

    Under torchrun (or whatever sets RANK and WORLD_SIZE) each process becomes one worker instead.

    Ctrl-C saves a checkpoint and stops; a second one stops at once.
    """
    if script is not None and world is not World.lab:
        raise UserError("only a lab can follow a script", key="--script", value=str(script), mend="add --world lab")
    from shoal.cli import running
    from shoal.lab import load_script
    from shoal.launch import torchrun
    from shoal.launch.prepare import prepare

    here = torchrun.place() if world is World.processes else None

    def make() -> Prepared:
        return prepare(
            job,
            overrides=_overrides(overrides, steps),
            cluster_file=cluster,
            workers=workers,
            runs=runs,
            resume=resume,
            world=world.value,
            devices=here.size if here else None,
        )

    words = ["train", str(job), *(["--world", world.value] if world is not World.processes else [])]
    words += ["--script", str(script)] * (script is not None) + ["--no-pace"] * (not pace)
    shown = running.Shown(
        world=world.value, command=_command(words, overrides, cluster, workers, runs), as_json=as_json
    )
    if here is not None:
        status = running.as_rank(here, make, shown)
    elif world is World.processes:
        status = running.in_processes(make(), shown)
    elif world is World.lab:
        prepared = make()
        changes = load_script(script, list(prepared.cluster.hosts)) if script is not None else []
        status = running.in_lab(prepared, shown, script=changes, pace=pace)
    else:
        status = running.in_virtual_time(make(), shown)
    raise typer.Exit(status)


def simulate(
    job: JobFile,
    timing: Annotated[
        bool,
        typer.Option(
            "--timing", help="Compute no values, only how long everything takes: a thousand devices in seconds."
        ),
    ] = False,
    resume: Resume = False,
    steps: Steps = None,
    overrides: Set = None,
    cluster: ClusterFile = None,
    workers: Workers = None,
    runs: Runs = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """Rehearse a job in virtual time: the same code, on the cluster's predicted speeds and links.

    Without --timing the tensors are real and the losses are those that training gives, to the bit.
    """
    if timing and resume:
        raise UserError(
            "nothing to resume: timing mode computes no values", key="--resume", mend="leave out one of the two"
        )
    from shoal.cli import running
    from shoal.launch.prepare import prepare

    prepared = prepare(
        job,
        overrides=_overrides(overrides, steps),
        cluster_file=cluster,
        workers=workers,
        runs=runs,
        resume=resume,
        world="virtual",
    )
    command = _command(["simulate", str(job), *(["--timing"] if timing else [])], overrides, cluster, workers, runs)
    shown = running.Shown(world="timing" if timing else "virtual", command=command, as_json=as_json)
    raise typer.Exit(running.in_virtual_time(prepared, shown))


def _overrides(overrides: list[str] | None, steps: int | None) -> list[str]:
    return [*(overrides or []), *([f"run.steps={steps}"] if steps is not None else [])]


def _command(
    words: list[str], overrides: list[str] | None, cluster: Path | None, workers: int | None, runs: Path
) -> str:
    """The command that was typed, without what a person would change when going on."""
    for text in overrides or []:
        words += ["--set", text]
    if cluster is not None:
        words += ["--cluster", str(cluster)]
    if workers is not None:
        words += ["--workers", str(workers)]
    if runs != Path("runs"):
        words += ["--runs", str(runs)]
    return shlex.join(["shoal", *words])
