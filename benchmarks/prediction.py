"""Does a rehearsal predict what training measures? Step times of both, per job, in the lab.

    python benchmarks/prediction.py               # 3 clusters x 2 models x 2 mixings, 5 repeats: about 25 minutes
    python benchmarks/prediction.py --quick       # one repeat of each: about 6 minutes

For each cluster the lab is probed, as a person would probe real machines, and `shoal simulate --timing` predicts from
the file that comes out; `shoal train --world lab` measures. A step time is the mean from the third step to the last,
over workers; the median over repeats is compared. Devices are so slow that all workers together keep this machine's
cores little more than half busy; a run whose pace debt is 2 % or more is void and says so.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from shoal.launch.logs import last_session, read_events
from shoal.worker import RunFolder

STEPS, WARMUP = 34, 3
VOID = 0.02
JOB = Path(__file__).parent.parent / "examples" / "first-light" / "job.toml"
DEVICES = """
[[device]]
name = "a"
island = "A"
count = {a}
speed = "4 GFLOP/s"
memory = "1 GiB"
memory_bandwidth = "1 GB/s"
[[device]]
name = "b"
island = "B"
count = {b}
speed = "3 GFLOP/s"
memory = "1 GiB"
memory_bandwidth = "0.8 GB/s"
"""
ISLANDS = """
[[island]]
name = "A"
[[island]]
name = "B"
[defaults.within_island]
latency = "{inner_latency}"
bandwidth = "{inner_bandwidth}"
[defaults.between_islands]
latency = "{latency}"
bandwidth = "{bandwidth}"
"""
CLUSTERS = {
    "LAN": ISLANDS.format(inner_latency="0.3 ms", inner_bandwidth="1 Gbps", latency="0.3 ms", bandwidth="1 Gbps")
    + DEVICES.format(a=2, b=2),
    "two regions": ISLANDS.format(
        inner_latency="1 ms", inner_bandwidth="500 Mbps", latency="20 ms", bandwidth="100 Mbps"
    )
    + DEVICES.format(a=2, b=2),
    "one slow link": ISLANDS.format(
        inner_latency="2 ms", inner_bandwidth="300 Mbps", latency="10 ms", bandwidth="25 Mbps"
    )
    + DEVICES.format(a=3, b=1),
}
MODELS = {"0.1 M": "{layers=2, width=64, heads=4}", "0.8 M": "{layers=4, width=128, heads=4}"}
BATCH = {"0.1 M": 48, "0.8 M": 16}
MIXINGS = {
    "all-reduce": '{name="all-reduce"}',
    "gossip": '{name="gossip", topology="one-peer-exponential"}',
}


@dataclass(frozen=True)
class Ran:
    step_s: float
    debt: float


def shoal(*arguments: str) -> None:
    done = subprocess.run([sys.executable, "-m", "shoal", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"shoal {' '.join(arguments)}: {done.stderr}")


def options(cluster: Path, model: str, mixing: str, runs: Path) -> list[str]:
    settings = (
        f"model.args={MODELS[model]}",
        "data.sequence=64",
        f"batch.size={BATCH[model]}",
        f"mixing={MIXINGS[mixing]}",
        "schedule.warmup=1",
        "run.log_every=100",
        "run.eval_every=0",
        "run.eval_batches=1",
        "run.checkpoint_every=0",
        "run.sample=0",
    )
    sets = [word for setting in settings for word in ("--set", setting)]
    return [str(JOB), "--cluster", str(cluster), "--steps", str(STEPS), "--runs", str(runs), *sets]


def read(root: Path) -> Ran:
    """The newest run below `root`."""
    (name,) = [path for path in root.iterdir() if path.is_dir()]
    folder = RunFolder(max(name.iterdir(), key=lambda path: int(path.name)))
    logs = last_session({path.stem: read_events(path) for path in (folder.root / "events").glob("*.jsonl")})
    steps, debts = [], [0.0]
    for events in logs.values():
        at = [event.at for event in events if event.kind == "step"]
        steps.append((at[-1] - at[WARMUP - 1]) / (len(at) - WARMUP))
        debts += [e.fields["debt_s"] / e.fields["asked_s"] for e in events if e.kind == "pace"]
    return Ran(statistics.mean(steps), max(debts))


def main(arguments: Sequence[str]) -> int:
    repeats = 1 if "--quick" in arguments else 5
    errors = []
    print(f"{STEPS} steps, {repeats} repeats; 4 workers; step times in seconds")
    print("cluster        model  mixing      predicted  measured  [least, most]        error  pace debt")
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        for name, text in CLUSTERS.items():
            written, probed = Path(folder) / "cluster.toml", Path(folder) / "probed.toml"
            written.write_text(text, encoding="utf-8")
            shoal("probe", "--lab", "--cluster", str(written), "--out", str(probed), "--force")
            for model in MODELS:
                for mixing in MIXINGS:
                    with tempfile.TemporaryDirectory() as runs:
                        shoal("simulate", "--timing", *options(probed, model, mixing, Path(runs)))
                        predicted = read(Path(runs)).step_s
                    measured = []
                    for _ in range(repeats):
                        with tempfile.TemporaryDirectory() as runs:
                            shoal("train", "--world", "lab", *options(written, model, mixing, Path(runs)))
                            measured.append(read(Path(runs)))
                    times = [ran.step_s for ran in measured if ran.debt < VOID]
                    debt = statistics.median(ran.debt for ran in measured)
                    cell = f"{name:13}  {model:5}  {mixing:10}  {predicted:9.3f}"
                    if not times:
                        print(f"{cell}  void: pace debt {debt:.1%}", flush=True)
                        continue
                    middle = statistics.median(times)
                    errors.append(predicted / middle - 1)
                    spread = f"[{min(times):.3f}, {max(times):.3f}]"
                    print(f"{cell}  {middle:8.3f}  {spread:18}  {errors[-1]:+7.1%}  {debt:.1%}", flush=True)
    sizes = sorted(map(abs, errors))
    print(f"median error {statistics.median(sizes):.1%}, worst {sizes[-1]:.1%}; {time.monotonic() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
