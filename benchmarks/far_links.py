"""Gossip, all-reduce and plain `DistributedDataParallel` behind the same slow links: step times in one lab.

    python benchmarks/far_links.py            # about ten minutes

Four hosts, 100 Mbit/s and 20 ms one way between all of them, a GPT of 3.3 M parameters in float32. Computation takes
0.32 s a step for everybody: Shoal's workers are paced by the lab, the DDP script sleeps in the forward and backward
hooks of every block for what is left of that, so that its buckets become ready over the whole backward pass, too. Runs
are interleaved; a step time is the mean from the third step on, over workers; medians over rounds.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from shoal import cluster as clusters
from shoal import costs, ingredients
from shoal import job as jobs
from shoal import lab as labs
from shoal.job import Job
from shoal.launch.logs import last_session, read_events

COMPUTE_S = 0.32
STEPS, WARMUP, ROUNDS = 20, 3, 3
HOSTS = 4
JOB = Path(__file__).parent.parent / "examples" / "first-light" / "job.toml"
CLUSTER = """
[defaults.within_island]
latency = "20 ms"
bandwidth = "100 Mbps"
[[device]]
name = "h"
count = {count}
speed = "{speed} FLOP/s"
memory = "2 GiB"
memory_bandwidth = "10 GB/s"
"""
MIXINGS = {
    "compute alone": '{name="none"}',
    "all-reduce": '{name="all-reduce"}',
    "gossip, ring": '{name="gossip", topology="ring"}',
    "gossip, one-peer exponential": '{name="gossip", topology="one-peer-exponential"}',
}
DDP = {"DDP": "none", "DDP, fp16 hook": "fp16"}
SETTINGS = (
    "model.args={layers=4, width=256, heads=4}",
    "data.sequence=64",
    f"batch.size={2 * HOSTS}",
    "batch.micro=2",
    "schedule.warmup=1",
    "run.log_every=100",
    "run.eval_every=0",
    "run.eval_batches=1",
    "run.checkpoint_every=0",
    "run.sample=0",
    f"run.steps={STEPS}",
    "run.threads=1",
)


def load(mixing: str) -> Job:
    return jobs.load(JOB, [*SETTINGS, f"mixing={mixing}"])


def speed() -> float:
    """FLOP/s of a device on which forward and backward of one worker's samples take `COMPUTE_S`."""
    loaded = ingredients.load(load(MIXINGS["compute alone"]))
    batch = loaded.corpus.train.batch([0])
    found = costs.profile(loaded.model, loaded.loss, batch)
    return (found.forward_flops + found.backward_flops) * 2 / COMPUTE_S


def ddp(hook: str) -> None:
    """One worker of the DDP script; prints its mean step time."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    loaded = ingredients.load(load(MIXINGS["all-reduce"]))
    stretch = Stretch(loaded.model)
    model = DistributedDataParallel(loaded.model)
    if hook == "fp16":
        model.register_comm_hook(None, fp16_compress_hook)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    ends = []
    for step in range(STEPS):
        ids = [(step * 8 + dist.get_rank() * 2 + k) % len(loaded.corpus.train) for k in range(2)]
        batch = loaded.corpus.train.batch(ids)
        optimizer.zero_grad()
        stretch.begin()
        total, weight = loaded.loss(model, batch)
        (total / float(weight)).backward()
        stretch.end()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        ends.append(time.monotonic())
    print(json.dumps((ends[-1] - ends[WARMUP - 1]) / (STEPS - WARMUP)))
    dist.destroy_process_group()


class Stretch:
    """Makes forward (a third) and backward (two thirds) of a model take `COMPUTE_S` together, block by block."""

    def __init__(self, model: nn.Module) -> None:
        self._began = 0.0
        (blocks,) = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
        count = len(blocks)
        for n, block in enumerate(blocks):
            forward, backward = (n + 1) / count / 3, 1 / 3 + (count - n) / count * 2 / 3
            block.register_forward_hook(lambda *_, share=forward: self._until(share))
            block.register_full_backward_hook(lambda *_, share=backward: self._until(share))

    def begin(self) -> None:
        self._began = time.monotonic()

    def end(self) -> None:
        self._until(1.0)

    def _until(self, share: float) -> None:
        time.sleep(max(0.0, self._began + share * COMPUTE_S - time.monotonic()))


def run_ddp(lab: labs.Lab, hook: str) -> float:
    first = lab.addresses[lab.hosts[0]][0]
    processes = []
    for rank, host in enumerate(lab.hosts):
        environment = {
            **os.environ,
            "MASTER_ADDR": first,
            "MASTER_PORT": str(labs.MEETING_PORT),
            "RANK": str(rank),
            "WORLD_SIZE": str(HOSTS),
        }
        argv = lab.command(host, [sys.executable, __file__, "ddp", hook])
        processes.append(subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=environment))
    return statistics.mean(json.loads(process.communicate(timeout=600)[0]) for process in processes)


def run_shoal(cluster: Path, mixing: str) -> float:
    with tempfile.TemporaryDirectory() as runs:
        sets = [word for setting in (*SETTINGS, f"mixing={mixing}") for word in ("--set", setting)]
        argv = [sys.executable, "-m", "shoal", "train", str(JOB), "--world", "lab", "--cluster", str(cluster)]
        subprocess.run([*argv, "--runs", runs, *sets], check=True, capture_output=True)
        (folder,) = Path(runs).glob("*/1/events")
        logs = last_session({path.stem: read_events(path) for path in folder.glob("*.jsonl")})
    ends = [[event.at for event in events if event.kind == "step"] for events in logs.values()]
    return statistics.mean((at[-1] - at[WARMUP - 1]) / (len(at) - WARMUP) for at in ends)


def main(arguments: Sequence[str]) -> int:
    if arguments[:1] == ["ddp"]:
        ddp(arguments[1])
        return 0
    times: dict[str, list[float]] = {name: [] for name in (*MIXINGS, *DDP)}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "far.toml"
        file.write_text(CLUSTER.format(count=HOSTS, speed=round(speed())), encoding="utf-8")
        for _ in range(ROUNDS):
            for name, mixing in MIXINGS.items():
                times[name].append(run_shoal(file, mixing))
            for name, hook in DDP.items():
                with labs.up(clusters.load(file)) as lab:
                    times[name].append(run_ddp(lab, hook))
    base = statistics.median(times["DDP"])
    print(f"{HOSTS} hosts, 100 Mbit/s, 20 ms one way; {STEPS} steps, {ROUNDS} rounds; seconds per step")
    for name, found in times.items():
        middle = statistics.median(found)
        print(f"  {name:30} {middle:6.3f}  [{min(found):.3f}, {max(found):.3f}]  {middle / base:5.2f} x DDP")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
