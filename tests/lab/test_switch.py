from __future__ import annotations

import socket
import struct
from collections.abc import Callable

import pytest

from lab.hosts import make
from shoal.cluster import parse
from shoal.lab.blueprint import LONGEST, SHORTEST, Settings, blueprint, packet_bytes, rate
from shoal.lab.switch import sort


def ipv4(src: str, dst: str, protocol: int = 6, *, ports: tuple[int, int] = (1, 2), fragment: int = 0) -> bytes:
    addresses = socket.inet_aton(src) + socket.inet_aton(dst)
    return struct.pack("!BBHHHBBH", 0x45, 0, 24, 7, fragment, 64, protocol, 0) + addresses + struct.pack("!HH", *ports)


def ipv6(src: str, dst: str, protocol: int = 6, *, ports: tuple[int, int] = (1, 2)) -> bytes:
    addresses = socket.inet_pton(socket.AF_INET6, src) + socket.inet_pton(socket.AF_INET6, dst)
    return struct.pack("!IHBB", 0x60000000, 4, protocol, 64) + addresses + struct.pack("!HH", *ports)


@pytest.mark.parametrize(
    ("packet", "family", "a", "b"),
    [(ipv4, socket.AF_INET, "10.77.0.1", "10.77.0.2"), (ipv6, socket.AF_INET6, "fd77::1", "fd77::2")],
)
def test_packets_of_one_connection_are_one_flow(packet: Callable[..., bytes], family: int, a: str, b: str) -> None:
    one, other, udp = packet(a, b), packet(a, b, ports=(1, 3)), packet(a, b, 17)
    found = sort(one)
    assert found is not None and found == sort(one + b"longer")
    assert found[0] == socket.inet_pton(family, b)
    assert len({found, sort(other), sort(udp), sort(packet(b, a))}) == 4


def test_fragments_of_a_datagram_are_one_flow_whatever_is_in_them() -> None:
    first = ipv4("10.0.0.1", "10.0.0.2", 17, ports=(5, 6), fragment=0x2000)
    second = ipv4("10.0.0.1", "10.0.0.2", 17, ports=(999, 1), fragment=0x00B9)
    assert sort(first) == sort(second)


@pytest.mark.parametrize("junk", [b"", b"\x45", b"\x60" * 39, b"\x00" * 60])
def test_what_is_no_ip_packet_is_not_carried(junk: bytes) -> None:
    assert sort(junk) is None


def test_packets_are_short_on_slow_links_and_long_on_fast_ones() -> None:
    assert packet_bytes(10e6 / 8) == 2500 and packet_bytes(100e6 / 8) == 25_000
    assert packet_bytes(1e3) == SHORTEST and packet_bytes(1e10) == LONGEST


def test_both_ends_of_an_asymmetric_way_keep_to_its_slower_direction() -> None:
    text = """
[[island]]
name = "A"
[[island]]
name = "B"
[[device]]
name = "a"
island = "A"
speed = "1 GFLOP/s"
memory = "1 GiB"
[[device]]
name = "b"
island = "B"
speed = "1 GFLOP/s"
memory = "1 GiB"
[[link]]
from = "A"
to = "B"
latency = "10 ms"
bandwidth = "100 Mbps"
back_bandwidth = "10 Mbps"
"""
    cluster = parse(text)
    assert (rate(cluster, "a", "b"), rate(cluster, "b", "a")) == (12.5e6, 1.25e6)
    for host in blueprint(cluster, Settings())["hosts"]:
        assert sum("mtu 2500" in command for command in host["commands"]) == 2  # IPv4 and IPv6


def test_buffers_fill_a_long_fast_way() -> None:
    told = blueprint(make(latency="100 ms", bandwidth="1 Gbps"), Settings(queue_s=0.1))
    most = int(dict(told["hosts"][0]["sysctls"])["ipv4/tcp_rmem"].split()[2])
    assert most >= 2 * 125e6 * 0.3  # the kernel counts half of it as bookkeeping
