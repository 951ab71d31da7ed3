"""Numbers as people read them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any


def count(number: float) -> str:
    """``12_345`` → ``"12.3k"``; below a thousand the number itself."""
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= size * 0.9995:
            return f"{number / size:.3g}{letter}"
    return f"{number:.3g}"


def size(nbytes: float) -> str:
    """``1_234_567`` → ``"1.23 MB"``; always three digits, so that a figure that grows does not jump about."""
    short = count(nbytes)
    return f"{short[:-1]} {short[-1]}B" if short[-1].isalpha() else f"{short} B"


def clock(seconds: float) -> str:
    """``243`` → ``"4:03"``, ``7384`` → ``"2:03:04"``; a fraction of a minute in seconds: ``"12.3 s"``."""
    if seconds < 59.95:
        return f"{seconds:.3g} s" if seconds >= 0.0005 else "0 s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def nats(loss: float | None) -> str:
    """A loss with four decimals, or a dash where there is none."""
    return "–" if loss is None else f"{loss:.4f}"


def baselines(table: Mapping[str, float]) -> str:
    """``{"unigram": 3.24, "bigram": 2.42}`` → ``"unigram 3.2400, bigram 2.4200"``, the weakest first."""
    return ", ".join(f"{name} {value:.4f}" for name, value in sorted(table.items(), key=lambda item: -item[1]))


def to_json(value: Any, *, indent: int | None = None) -> str:
    """`value` as JSON; NaN and infinities, which JSON does not have, become null."""
    separators = (",", ":") if indent is None else None
    try:
        return json.dumps(value, allow_nan=False, default=str, indent=indent, separators=separators)
    except ValueError:  # rare, so that the common case is not searched
        return json.dumps(json_ready(value), default=str, indent=indent, separators=separators)


def json_ready(value: Any) -> Any:
    """`value` without NaN and infinities, which JSON does not have: they become null."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: json_ready(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_ready(item) for item in value]
    return value
