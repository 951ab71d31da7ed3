"""What there is: devices, hosts, islands and links, as a person writes them in ``cluster.toml``."""

from shoal.cluster.cluster import Cluster, Device, Host, Island, Link, load, local

__all__ = ["Cluster", "Device", "Host", "Island", "Link", "load", "local"]
