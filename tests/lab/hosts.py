"""Small clusters for labs, and programs on their hosts. Importable as ``lab.hosts`` with ``tests`` on the path."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

from shoal import cluster as clusters
from shoal.cluster import Cluster
from shoal.lab import Lab

TWO = """
name = "two"
[defaults.within_island]
latency = "{latency}"
bandwidth = "{bandwidth}"
[[device]]
name = "h"
count = {count}
speed = "1 GFLOP/s"
memory = "1 GiB"
"""

ECHO = """
import socket
with socket.create_server(("", 7), family=socket.AF_INET6, dualstack_ipv6=True) as server:
    print("ready")
    while True:
        connection, _ = server.accept()
        with connection:
            while data := connection.recv(1 << 16):
                connection.sendall(data)
"""
"""On every family, at port 7; begins with a line that says so."""


def make(count: int = 2, *, latency: str = "5 ms", bandwidth: str = "100 Mbps") -> Cluster:
    return clusters.parse(TWO.format(count=count, latency=latency, bandwidth=bandwidth), file="two.toml")


def said(lab: Lab, host: str, code: str, *arguments: str, timeout: float = 30.0) -> str:
    """What a Python program prints on `host`."""
    argv = lab.command(host, [sys.executable, "-c", code, *arguments])
    done = subprocess.run(argv, capture_output=True, text=True, timeout=timeout, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@contextlib.contextmanager
def serving(lab: Lab, host: str, code: str) -> Iterator[subprocess.Popen[str]]:
    """A Python program on `host` that has printed its first line, "ready"."""
    argv = lab.command(host, [sys.executable, "-u", "-c", code])
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
        process.wait()
