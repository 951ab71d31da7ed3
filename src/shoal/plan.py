"""Who does what: the Plan, as data. It is made from a job and a cluster, checked, written to ``plan.json`` and run.

A route is the way of a micro-batch through devices. Data parallel training is N routes of one segment each; what a
segment holds is written as parameter slices, and the blocks that peers agree on follow from who holds what.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class ParamSlice:
    """A piece of one parameter: `name` as in ``named_parameters()``, cut along `dim` from `start` to `stop`."""

    name: str
    shape: tuple[int, ...]
    dtype: str  # "float32"
    dim: int = 0
    start: int = 0
    stop: int | None = None  # None: to the end

    @property
    def numel(self) -> int:
        total = 1
        for size in self.shape:
            total *= size
        if (self.stop is None and self.start == 0) or not self.shape:
            return total
        stop = self.shape[self.dim] if self.stop is None else self.stop
        return total // self.shape[self.dim] * (stop - self.start)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockSpec:
    """A block: parameter slices of one group and dtype that become ready, move and are updated together."""

    name: str
    slices: tuple[ParamSlice, ...]
    decay: bool  # the parameter group: with or without weight decay
    ready: float  # share of the last micro-batch's computation after which all its gradients are there

    @property
    def dtype(self) -> str:
        return self.slices[0].dtype


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A set of operators on one device; `ops` empty means the whole model."""

    name: str
    device: str
    ops: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """The way of a micro-batch. `share` is the number of samples per step that take this route."""

    name: str
    segments: tuple[Segment, ...]
    share: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sync:
    """How the owners of a group of blocks agree."""

    blocks: tuple[str, ...]
    mixing: str
    topology: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """What one sample costs, and what an update costs per element; enough to give every computation a duration."""

    forward_flops: float
    backward_flops: float
    update_bytes_per_element: float = 32.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything that the workers of one run must agree on."""

    routes: tuple[Route, ...]
    blocks: tuple[BlockSpec, ...]
    sync: tuple[Sync, ...]
    island: Mapping[str, int]
    costs: Costs
    model_digest: str

    @property
    def peers(self) -> tuple[str, ...]:
        return tuple(sorted({s.device for r in self.routes for s in r.segments}))

    def digest(self) -> str:
        """Peers that were handed different plans must find out before the first exchange."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:16]

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Plan:
        raw = json.loads(text)
        return cls(
            routes=tuple(_route(r) for r in raw["routes"]),
            blocks=tuple(_block(b) for b in raw["blocks"]),
            sync=tuple(
                Sync(blocks=tuple(s["blocks"]), mixing=s["mixing"], topology=s["topology"]) for s in raw["sync"]
            ),
            island=raw["island"],
            costs=Costs(**raw["costs"]),
            model_digest=raw["model_digest"],
        )


def split(size: int, peers: Sequence[str]) -> dict[str, int]:
    """`size` samples over `peers` as evenly as whole numbers allow, the first peers taking the remainder (11/11/10)."""
    base, rest = divmod(size, len(peers))
    return {peer: base + (n < rest) for n, peer in enumerate(peers)}


def _route(raw: Mapping[str, Any]) -> Route:
    segments = tuple(Segment(name=s["name"], device=s["device"], ops=tuple(s["ops"])) for s in raw["segments"])
    return Route(name=raw["name"], segments=segments, share=raw["share"])


def _block(raw: Mapping[str, Any]) -> BlockSpec:
    slices = tuple(ParamSlice(**{**s, "shape": tuple(s["shape"])}) for s in raw["slices"])
    return BlockSpec(name=raw["name"], slices=slices, decay=raw["decay"], ready=raw["ready"])
