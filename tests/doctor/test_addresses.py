from __future__ import annotations

from dataclasses import replace

import pytest

from doctor.machines import NETWORK, by_check
from shoal.doctor import check_addresses
from shoal.doctor.network import Network


def test_a_healthy_network_has_nothing_to_mend() -> None:
    assert {finding.state for finding in check_addresses(NETWORK)} == {"ok"}


@pytest.mark.parametrize(
    ("offered", "interface", "state", "text"),
    [
        ("127.0.0.1", "lo", "warn", "only this machine can reach"),
        ("127.0.1.1", "none", "warn", "only this machine can reach"),
        ("::1", "lo", "warn", "only this machine can reach"),
        ("169.254.3.4", "eth0", "warn", "the same cable"),
        ("fe80::1%eth0", "eth0", "warn", "the same cable"),
        ("172.17.0.2", "eth0", "warn", "a container's bridge"),
        ("10.1.2.3", "veth12", "warn", "a container's bridge"),
        ("10.88.0.1", "cni0", "warn", "a container's bridge"),
        ("172.18.0.1", "br-0123456789ab", "warn", "a container's bridge"),
        ("100.101.102.103", "tailscale0", "note", "Tailscale"),
        ("fd7a:115c:a1e0::1", "tailscale0", "note", "Tailscale"),
        ("100.64.0.9", "eth0", "warn", "provider's NAT"),
        ("100.127.255.255", "eth0", "warn", "provider's NAT"),
        ("100.128.0.1", "eth0", "ok", "100.128.0.1"),
        ("10.0.0.9", "wg0", "note", "WireGuard"),
        ("10.8.0.2", "tun0", "note", "a tunnel"),
        ("172.18.0.2", "eth0", "ok", "a private address"),
        ("8.8.4.4", "eth0", "ok", "8.8.4.4 (eth0"),
    ],
)
def test_addresses_that_others_would_be_told(offered: str, interface: str, state: str, text: str) -> None:
    """Cases A1 and A4."""
    interfaces = {"lo": ["127.0.0.1", "::1"], interface: [offered, "fd00::7"]}
    network = replace(NETWORK, interfaces=interfaces, offered=offered, coordinator="oslo", met=["10.9.9.9"])
    found = by_check(check_addresses(network))["address"]
    assert (found.state, text in found.text) == (state, True), found


def test_a_coordinators_name_that_leads_to_loopback_is_a_trap() -> None:
    """Case A1: on the coordinator's own machine its name is 127.0.1.1 in /etc/hosts."""
    network = replace(NETWORK, offered="127.0.0.1", coordinator="oslo", met=["127.0.1.1"])
    found = by_check(check_addresses(network))["address"]
    assert found.state == "warn" and "/etc/hosts" in found.mend and "SHOAL_INTERFACE" in found.mend


@pytest.mark.parametrize("coordinator", ["127.0.0.1", "localhost"])
def test_loopback_that_was_asked_for_is_said_and_no_trap(coordinator: str) -> None:
    network = replace(NETWORK, offered="127.0.0.1", coordinator=coordinator, met=["127.0.0.1"])
    found = by_check(check_addresses(network))["address"]
    assert found.state == "note" and "all workers must be on this machine" in found.text


def test_what_has_decided_is_said() -> None:
    assert "by the way to other machines" in by_check(check_addresses(NETWORK))["address"].text
    found = by_check(check_addresses(replace(NETWORK, setting="docker0", offered="172.17.0.1")))["address"]
    assert found.state == "warn" and "172.17.0.1 (docker0, by SHOAL_INTERFACE)" in found.text


@pytest.mark.parametrize("setting", ["nosuch0", "^lo,docker", "198.51.100.77"])
def test_settings_that_name_nothing(setting: str) -> None:
    """Case A2: the message lists what there is."""
    found = by_check(check_addresses(Network.here(setting=setting)))["address"]
    assert found.state == "fail" and setting in found.text and "(no list, no exclusion) of: " in found.mend


def test_no_route_and_no_name() -> None:
    unrouted = replace(NETWORK, routes=[], offered=None)
    assert by_check(check_addresses(unrouted))["address"].state == "warn"
    found = by_check(check_addresses(replace(unrouted, coordinator="10.0.0.1", met=["10.0.0.1"])))["address"]
    assert found.state == "fail" and "no route" in found.text
    found = by_check(check_addresses(replace(unrouted, coordinator="olso", met=[])))["address"]
    assert found.state == "fail" and "olso" in found.text and "has no address" in found.text


@pytest.mark.parametrize(
    ("addresses", "ipv6", "text"),
    [
        (["192.168.1.7"], True, "IPv4 only: peers that have IPv6 only"),
        (["192.168.1.7"], False, "IPv6 is switched off"),
        (["fd00::7"], True, "IPv6 only: peers that have IPv4 only"),
    ],
)
def test_one_family(addresses: list[str], ipv6: bool, text: str) -> None:
    """Case A5."""
    network = replace(NETWORK, interfaces={"lo": ["127.0.0.1", "::1"], "eth0": addresses}, ipv6=ipv6)
    found = by_check(check_addresses(network))["families"]
    assert found.state == "note" and text in found.text


def test_what_the_hosts_own_name_resolves_to_is_said_because_others_go_by_it() -> None:
    """Case A1: Debian's 127.0.1.1."""
    found = by_check(check_addresses(replace(NETWORK, resolved=["127.0.1.1"])))["host name"]
    assert found.state == "note" and "127.0.1.1" in found.text and "GLOO_SOCKET_IFNAME" in found.mend
    assert "does not resolve" in by_check(check_addresses(replace(NETWORK, resolved=[])))["host name"].text
