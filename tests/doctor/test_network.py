from __future__ import annotations

from dataclasses import replace

from doctor.machines import NETWORK
from shoal.doctor import Endpoint
from shoal.doctor.network import Network


def test_the_way_to_loopback_begins_at_loopback() -> None:
    network = Network.here("127.0.0.1")
    assert (network.routes, network.met, network.offered) == (["127.0.0.1"], ["127.0.0.1"], "127.0.0.1")


def test_a_setting_overrules_the_route() -> None:
    (loopback,) = [name for name, found in Network.here().interfaces.items() if "127.0.0.1" in found][:1]
    assert Network.here(setting=loopback).offered in ("127.0.0.1", "::1")
    assert Network.here("127.0.0.1", setting="::1").offered in ("::1", None)  # None without IPv6
    refused = Network.here(setting="^lo,docker")
    assert refused.offered is None and refused.refused is not None


def test_a_coordinator_without_an_address_has_no_route() -> None:
    network = Network.here("no-such-host.invalid")
    assert (network.routes, network.met, network.offered) == ([], [], None)


def test_where_others_would_call() -> None:
    """What is offered first, then the routes, then the rest; never loopback."""
    home, docker = Endpoint("192.168.1.7", 7), Endpoint("172.17.0.1", 7)
    assert NETWORK.reachable(7) == [home, Endpoint("fd00::7", 7), docker]
    assert replace(NETWORK, offered="172.17.0.1").reachable(7)[:2] == [docker, home]
    bare = replace(NETWORK, interfaces={"lo": ["127.0.0.1"]}, routes=[], offered=None)
    assert bare.reachable(7) == [Endpoint("oslo", 7)]
