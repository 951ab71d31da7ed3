"""The transport suite on Gloo's point-to-point messages."""

from __future__ import annotations

from transport.suite import TransportSuite


class TestTorchDistributed(TransportSuite):
    name = "torch-distributed"
