"""The transport suite on TCP sockets, and what only they can meet: strangers and nonsense."""

from __future__ import annotations

from transport.suite import TransportSuite


class TestStreams(TransportSuite):
    name = "streams"
