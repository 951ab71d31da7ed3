"""Real processes on loopback. No duration and no rate is asserted, only that all is there and nothing is left."""

from __future__ import annotations

import os

import pytest

from shoal import cluster as clusters
from shoal.errors import ShoalError
from shoal.probe import Progress, Settings, as_text, measure, to_cluster
from shoal.probe.measure import Spec

SMALL = Settings(seconds=0.5, nbytes=20e6, pings=10, repeats=2, window=0.1, patience=60.0)


def test_two_processes_as_two_hosts_that_meet_at_an_address_of_their_own() -> None:
    """As in a laboratory of network namespaces, with a wrapper before each command."""
    told: list[Progress] = []
    port = 20_000 + os.getpid() % 10_000
    found = measure(
        ["a", "b"],
        wrap=lambda peer: ["nice", "-n", "0"],
        environment=lambda peer: {
            "SHOAL_LAB_HOST": f"host-{peer}",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        },
        settings=SMALL,
        progress=told.append,
    )
    assert set(found.hosts) == {"host-a", "host-b"}
    assert set(found.ways) == {("host-a", "host-b"), ("host-b", "host-a")}
    assert all(way.bandwidth.value > 0 and way.latency_s > 0 for way in found.ways.values())
    assert all(device.flops["float32"].value > 0 for device in found.devices.values())
    offset, error = found.hosts["host-b"].clock_offset_s, found.hosts["host-b"].clock_error_s
    assert offset is not None and error is not None and abs(offset) <= error + 1e-3, "it is one clock"
    assert [progress.done for progress in told] == [1, 2, 3, 4, 5]
    cluster = to_cluster(found)
    assert clusters.parse(as_text(cluster, found, when="now")) == cluster


def test_a_peer_that_cannot_start_is_named() -> None:
    with pytest.raises(ShoalError, match=r"b: .*no such host") as caught:
        measure(
            ["a", "b"],
            wrap=lambda peer: ["sh", "-c", "echo no such host >&2; exit 7", "sh"] if peer == "b" else [],
            settings=SMALL,
        )
    assert caught.value.exit_status == 3


def test_a_spec_survives_json() -> None:
    spec = Spec(
        peers=["a", "b"], settings=SMALL, threads=2, kinds={"a": "cpu"}, numbers={"b": 1}, names={"a": ("x", "y")}
    )
    assert Spec.from_json(spec.to_json()) == spec
