from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.doctor import Endpoint, parse_endpoint
from shoal.doctor.endpoint import parse_listening
from shoal.errors import UserError


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [
        ("oslo", Endpoint("oslo", 29600)),
        ("10.0.0.1:7", Endpoint("10.0.0.1", 7)),
        ("[::1]:29601", Endpoint("::1", 29601)),
        ("[fd77::1]", Endpoint("fd77::1", 29600)),
        ("::1", Endpoint("::1", 29600)),
    ],
)
def test_addresses(text: str, endpoint: Endpoint) -> None:
    """Case A5."""
    assert parse_endpoint(text, key="--peer") == endpoint
    assert parse_endpoint(str(endpoint), key="--peer") == endpoint


@pytest.mark.parametrize("text", ["", ":7", "oslo:x", "oslo:0", "oslo:70000", "[::1", "[::1]7", "a:b:c", "fd77::1:x"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(UserError, match="--peer"):
        parse_endpoint(text, key="--peer")


@given(address=st.ip_addresses(), port=st.integers(1, 65535))
def test_what_is_shown_can_be_typed(address: object, port: int) -> None:
    endpoint = Endpoint(str(address), port)
    assert parse_endpoint(str(endpoint), key="--peer") == endpoint


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [
        ("29600", Endpoint("", 29600)),
        (":7", Endpoint("", 7)),
        ("*:7", Endpoint("", 7)),
        ("[::]:7", Endpoint("::", 7)),
        ("10.0.0.1:7", Endpoint("10.0.0.1", 7)),
    ],
)
def test_where_to_listen(text: str, endpoint: Endpoint) -> None:
    assert parse_listening(text, key="--listen") == endpoint


@pytest.mark.parametrize("text", ["0", "65536", ":", "oslo:0", "10.0.0.1:x"])
def test_where_nobody_can_listen(text: str) -> None:
    """Case A8: port 0 is never announced."""
    with pytest.raises(UserError, match="--listen"):
        parse_listening(text, key="--listen")
