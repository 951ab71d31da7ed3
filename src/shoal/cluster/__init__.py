"""What there is: devices, hosts, islands and links, as a person writes them in ``cluster.toml``."""

from shoal.cluster.build import load, parse
from shoal.cluster.cluster import Cluster, Device, Host, Island, Link, Links, Rule
from shoal.cluster.local import local
from shoal.cluster.template import template
from shoal.cluster.write import dump, matrix_text

__all__ = [
    "Cluster",
    "Device",
    "Host",
    "Island",
    "Link",
    "Links",
    "Rule",
    "dump",
    "load",
    "local",
    "matrix_text",
    "parse",
    "template",
]
