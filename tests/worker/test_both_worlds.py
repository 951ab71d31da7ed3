"""The same job in real processes and in virtual time: the same parameters, to the bit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal import cluster as clusters
from shoal.worker import Outcome
from shoal.worlds.simulation import Simulation
from worker.programs import Train
from worlds.processes import Crowd

BUCKET = 'bucket="16 KiB"'
MIXINGS = [
    f'mixing={{name="all-reduce", {BUCKET}}}',
    *(
        f'mixing={{name="gossip", topology="{topology}", {BUCKET}}}'
        for topology in ("complete", "ring", "one-peer-exponential", "alternating-exponential-ring")
    ),
]
SEED = 1234


@pytest.fixture(scope="module")
def crowd() -> Iterator[Crowd]:
    crowd = Crowd()
    yield crowd
    crowd.close()


def in_processes(crowd: Crowd, train: Train, **settings: object) -> dict[str, Outcome]:
    names = clusters.local(train.workers, islands=train.islands).peers
    endings = crowd.run(train, names, **settings)
    for ending in endings.values():
        assert ending.error is None, ending.trace
    return {peer: ending.value for peer, ending in endings.items()}


def in_virtual_time(train: Train) -> dict[str, Outcome]:
    return Simulation(clusters.local(train.workers, islands=train.islands), seed=SEED, threads=1).run(train)


@pytest.mark.parametrize("n", [2, 3, 4])
@pytest.mark.parametrize("mixing", MIXINGS, ids=["all-reduce", "complete", "ring", "exponential", "alternating"])
def test_equal_to_the_bit(crowd: Crowd, job_file: Path, mixing: str, n: int) -> None:
    """20 steps in float32 with dropout, micro-batches, unequal shares, tied weights and global clipping."""
    train = Train(job_file, (mixing, "run.eval_every=10", f"run.seed={SEED}"), n)
    real, virtual = in_processes(crowd, train), in_virtual_time(train)
    for peer, outcome in real.items():
        assert outcome.digest == virtual[peer].digest
        assert (outcome.train_loss, outcome.eval_loss) == (virtual[peer].train_loss, virtual[peer].eval_loss)


def test_bfloat16_autocast_is_equal_to_the_bit(crowd: Crowd, job_file: Path) -> None:
    train = Train(job_file, (MIXINGS[2], "run.steps=5", 'run.precision="bfloat16"', f"run.seed={SEED}"), 3)
    real, virtual = in_processes(crowd, train), in_virtual_time(train)
    assert [o.digest for o in real.values()] == [o.digest for o in virtual.values()]


def test_an_engines_own_collective_is_equal_to_1e_9(crowd: Crowd, job_file: Path) -> None:
    """Another order of additions: equal in float64 to rounding, not to the bit."""
    overrides = (MIXINGS[0], "run.steps=10", 'run.precision="float64"', f"run.seed={SEED}")
    train = Train(job_file, overrides, 3)
    real = in_processes(crowd, train, collective="engine")
    virtual = in_virtual_time(train)
    assert real["worker-0"].eval_loss == pytest.approx(virtual["worker-0"].eval_loss, rel=1e-9)
    for peer, outcome in real.items():
        assert outcome.train_loss == pytest.approx(virtual[peer].train_loss, rel=1e-9)


def test_every_transport_trains_to_the_same_bits(crowd: Crowd, job_file: Path) -> None:
    train = Train(job_file, (MIXINGS[3], "run.steps=4", f"run.seed={SEED}"), 2)
    streams = in_processes(crowd, train, transport="streams")
    engine = in_processes(crowd, train, transport="torch-distributed")
    assert [o.digest for o in streams.values()] == [o.digest for o in engine.values()]
