"""How many workers fit into a rehearsal, and what the virtual world costs.

    python benchmarks/virtual_scale.py            # both parts
    python benchmarks/virtual_scale.py timing     # 1,024 workers, shapes only
    python benchmarks/virtual_scale.py numeric    # 64 workers with real numbers, against the bare arithmetic

Each measurement is a process of its own. Numeric runs are interleaved with the bare arithmetic, the same models,
forward and backward passes and optimizer steps without Shoal, and reported as a ratio of medians. What they do besides,
the hand-shake, the mixing and the evaluation at the end, counts against Shoal.
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from shoal import cluster as clusters
from shoal import ingredients
from shoal import job as jobs
from shoal.cluster import Cluster
from shoal.data import step_samples
from shoal.job import Job
from shoal.planners import data_parallel
from shoal.worker import work
from shoal.worlds.simulation import Simulation

CLUSTER = """
[defaults.between_islands]
latency = "20 ms"
bandwidth = "100 Mbps"
"""
ISLAND = """
[[island]]
name = "island-{k}"
latency = "0.5 ms"
bandwidth = "1 Gbps"

[[device]]
name = "w{k}"
island = "island-{k}"
count = {count}
speed = "50 GFLOP/s"
memory = "8 GiB"
memory_bandwidth = "20 GB/s"
"""
MIXINGS = {
    "gossip": '{name="gossip", topology="one-peer-exponential", bucket="512 KiB"}',
    "all-reduce": '{name="all-reduce", bucket="512 KiB"}',
}
MODEL = ["model.args={layers=4, width=64, heads=4}", "data.sequence=32"]
JOB = Path(__file__).parent.parent / "examples" / "first-light" / "job.toml"


def make(workers: int, steps: int, mixing: str, samples: int) -> tuple[Job, Cluster]:
    """A small job on `workers` devices in four islands."""
    overrides = [
        *MODEL,
        f"run.steps={steps}",
        "schedule.warmup=1",
        f"batch.size={workers * samples}",
        f"batch.micro={samples}",
        f"mixing={MIXINGS[mixing]}",
        "run.eval_every=0",
        "run.checkpoint_every=0",
        "run.sample=0",
    ]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cluster.toml"
        path.write_text(CLUSTER + "".join(ISLAND.format(k=k, count=workers // 4) for k in range(4)))
        return jobs.load(JOB, overrides), clusters.load(path)


def rehearse(workers: int, steps: int, mixing: str, *, samples: int, numeric: bool) -> dict[str, float]:
    torch.set_num_threads(1)
    job, cluster = make(workers, steps, mixing, samples)
    plan = data_parallel.plan(job, cluster)
    began = time.perf_counter()
    simulation = Simulation(cluster, numeric=numeric, seed=job.run.seed)
    simulation.run(lambda world: work(world, job, plan))
    return {
        "seconds": time.perf_counter() - began,
        "virtual_seconds": simulation.now,
        "blocks": len(plan.blocks),
        "parameters": sum(piece.numel for block in plan.blocks for piece in block.slices),
        "peak_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,
    }


def bare(workers: int, steps: int, samples: int) -> dict[str, float]:
    """The arithmetic alone: every worker's model built, its passes and fused AdamW steps in a plain loop."""
    torch.set_num_threads(1)
    job, _ = make(workers, steps, "gossip", samples)
    began = time.perf_counter()
    loaded = [ingredients.load(job) for _ in range(workers)]
    optimizers = [torch.optim.AdamW(one.model.parameters(), lr=1e-3, fused=True) for one in loaded]
    for t in range(steps):
        ids = step_samples(0, t, samples=len(loaded[0].corpus.train), size=workers * samples)
        for k, (one, optimizer) in enumerate(zip(loaded, optimizers, strict=True)):
            batch = one.corpus.train.batch(ids[k * samples : (k + 1) * samples])
            total, weight = one.loss(one.model, batch)
            (total / float(weight)).backward()
            torch.nn.utils.clip_grad_norm_(one.model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    return {"seconds": time.perf_counter() - began, "peak_gb": peak}


def child(arguments: Sequence[str]) -> dict[str, float]:
    """Run this file with `arguments` in a fresh process and return what it measured."""
    done = subprocess.run([sys.executable, __file__, *arguments], check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def timing(workers: int = 1024, steps: int = 10) -> None:
    print(f"{workers:,} virtual workers, timing mode, {steps} steps")
    for mixing in MIXINGS:
        got = child(["one", "timing", mixing, str(workers), str(steps)])
        print(
            f"  {mixing:10}  {got['seconds']:6.1f} s after start-up, {int(got['blocks'])} blocks,"
            f" {got['virtual_seconds']:.2f} virtual s, peak {got['peak_gb']:.2f} GB"
        )


def numeric(workers: int = 64, steps: int = 100, repeats: int = 3) -> None:
    runs: dict[str, list[dict[str, float]]] = {"bare": [], "gossip": [], "all-reduce": []}
    for _ in range(repeats):
        for name, results in runs.items():
            results.append(child(["one", "bare" if name == "bare" else "numeric", name, str(workers), str(steps)]))
    print(f"{workers} virtual workers, numeric, {int(runs['gossip'][0]['parameters']):,} parameters, {steps} steps")
    base = statistics.median(r["seconds"] for r in runs["bare"])
    for name, results in runs.items():
        seconds = statistics.median(r["seconds"] for r in results)
        peak = max(r["peak_gb"] for r in results)
        print(f"  {name:10}  {seconds:6.1f} s, {seconds / base:.2f} x the bare arithmetic, peak {peak:.2f} GB")


def main(arguments: Sequence[str]) -> None:
    if arguments[:1] == ["one"]:
        kind, mixing, workers, steps = arguments[1], arguments[2], int(arguments[3]), int(arguments[4])
        if kind == "bare":
            got = bare(workers, steps, samples=2)
        else:
            got = rehearse(workers, steps, mixing, samples=2, numeric=kind == "numeric")
        print(json.dumps(got))
        return
    if "numeric" not in arguments:
        timing()
    if "timing" not in arguments:
        numeric()


if __name__ == "__main__":
    main(sys.argv[1:])
