"""Does a probe find what is there? `shoal probe --lab` on six known hosts of three islands, against the file.

    python benchmarks/probe_truth.py            # about 90 seconds; needs what a lab needs

The cluster has an asymmetric link between two islands and one very slow lone host. Goals: each bandwidth within 10 %
(of IP rate; a probe reports payload), each latency within 10 % or 1 ms, the true islands, under two minutes.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from shoal import cluster as clusters
from shoal.cluster import Cluster

TRUTH = """
[[island]]
name = "oslo"
latency = "0.5 ms"
bandwidth = "500 Mbps"
[[island]]
name = "bern"
latency = "1 ms"
bandwidth = "300 Mbps"
[[island]]
name = "home"
[[device]]
name = "o"
island = "oslo"
count = 3
speed = "50 GFLOP/s"
memory = "1 GiB"
[[device]]
name = "b"
island = "bern"
count = 2
speed = "20 GFLOP/s"
memory = "1 GiB"
[[device]]
name = "lone"
island = "home"
speed = "10 GFLOP/s"
memory = "1 GiB"
[[link]]
from = "oslo"
to = "bern"
latency = "20 ms"
bandwidth = "100 Mbps"
back_bandwidth = "40 Mbps"
[[link]]
from = "home"
to = "oslo"
latency = "40 ms"
bandwidth = "5 Mbps"
back_bandwidth = "20 Mbps"
[[link]]
from = "home"
to = "bern"
latency = "50 ms"
bandwidth = "5 Mbps"
back_bandwidth = "20 Mbps"
"""


def islands(cluster: Cluster) -> set[frozenset[str]]:
    found: dict[str, set[str]] = {}
    for host in cluster.hosts.values():
        found.setdefault(host.island, set()).add(host.name)
    return {frozenset(hosts) for hosts in found.values()}


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        file, out = Path(folder) / "truth.toml", Path(folder) / "probed.toml"
        file.write_text(TRUTH, encoding="utf-8")
        began = time.monotonic()
        command = ["probe", "--lab", "--cluster", str(file), "--out", str(out)]
        subprocess.run([sys.executable, "-m", "shoal", *command], check=True, capture_output=True)
        seconds = time.monotonic() - began
        truth, probed = clusters.load(file), clusters.load(out)
    wrong, worst_rate, worst_delay = [], 0.0, 0.0
    pairs = [(a, b) for a in truth.hosts for b in truth.hosts if a != b]
    for pair in pairs:
        real, found = truth.links[pair], probed.links[pair]
        rate = found.bandwidth_bytes_per_s / real.bandwidth_bytes_per_s - 1
        delay = found.latency_s - real.latency_s
        worst_rate, worst_delay = max(worst_rate, rate, key=abs), max(worst_delay, delay, key=abs)
        if abs(rate) > 0.10 or abs(delay) > max(0.1 * real.latency_s, 1e-3):
            wrong.append(f"{pair[0]} > {pair[1]}: bandwidth {rate:+.1%}, latency {1e3 * delay:+.2f} ms")
    speeds = [probed.device(d.name).flops / d.flops - 1 for d in truth.devices]
    same = islands(truth) == islands(probed)
    print(f"{len(pairs)} ways measured in {seconds:.0f} s, start and end of the processes included")
    print(f"worst bandwidth {worst_rate:+.1%}, worst latency {1e3 * worst_delay:+.2f} ms")
    print(f"device speeds {min(speeds):+.1%} to {max(speeds):+.1%}; islands {'right' if same else 'WRONG'}")
    for line in wrong:
        print(f"  outside its goal: {line}")
    return 1 if wrong or not same or seconds > 120 else 0


if __name__ == "__main__":
    sys.exit(main())
