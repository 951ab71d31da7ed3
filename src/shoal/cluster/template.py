"""The commented example that ``shoal init`` writes: a small cluster, and every key that there is."""

from __future__ import annotations

from shoal import schema
from shoal.cluster.file import ClusterFile

_HEAD = """\
What there is: devices, on hosts, on islands, joined by links.
Quantities carry their unit: "100 Mbps", "20 ms", "24 GiB".
Mbps and MBps differ by eight: a lower-case b is a bit, a capital B a byte.
This example is four GPUs of one host in Oslo and two PCs in Bern, behind a home connection."""

_EXAMPLE = """
name = "two-cities"

[defaults.within_island]
latency = "0.2 ms"
bandwidth = "1 Gbps"

[[island]]
name = "oslo"

[[island]]
name = "bern"

[[host]]
name = "server"
island = "oslo"
price_per_hour = "1.20 $/h"

[[device]]
name = "gpu"
host = "server"
count = 4
kind = "cuda"
speed = "10 TFLOP/s"
memory = "24 GiB"

[[device]]
name = "pc"
island = "bern"
count = 2
speed = "100 GFLOP/s"
memory = "16 GiB"

[[link]]
from = "oslo"
to = "bern"
latency = "20 ms"
bandwidth = "100 Mbps"
back_bandwidth = "20 Mbps"
shared = true
"""

_ALL = """
Every key, with its meaning. Required ones are marked; the others stand with their default, or with an example."""


def template() -> str:
    """A ``cluster.toml`` that loads as it stands, followed by all keys as comments."""
    return "\n".join([*schema.comment(_HEAD), _EXAMPLE, *schema.comment(_ALL), schema.reference(ClusterFile)])
