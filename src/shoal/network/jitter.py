"""How latencies vary: log-normal, which is never negative and has the heavy tail of real ones."""

from __future__ import annotations

import math

MOST = 1e6
"""Jitter over latency, for which the numbers are still numbers."""


def jittered(latency_s: float, jitter_s: float, normal: float) -> float:
    """A latency of mean `latency_s` and standard deviation `jitter_s`.

    Args:
        normal: drawn from the standard normal distribution.
    """
    if not latency_s or not jitter_s:
        return latency_s
    spread = math.log1p(min(jitter_s / latency_s, MOST) ** 2)
    return latency_s * math.exp(math.sqrt(spread) * normal - spread / 2.0)
