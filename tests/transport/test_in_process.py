"""The transport suite on queues inside one process."""

from __future__ import annotations

from transport.suite import TransportSuite


class TestInProcess(TransportSuite):
    name = "in-process"
