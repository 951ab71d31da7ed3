"""The cluster file as types: what a person may write in ``cluster.toml``, before names are looked up."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from shoal.units import Bandwidth, ByteCount, FlopsPerS, MemoryBandwidth, PricePerByte, PricePerHour, Seconds, Share

_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
_NAME_MEANING = "letters, digits, dots, dashes and underscores."


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


def _jitter() -> Any:
    return Field(
        default=0.0, ge=0, examples=["2 ms"], description="Standard deviation of the latency from packet to packet."
    )


def _loss() -> Any:
    return Field(default=0.0, ge=0, lt=1, description='Share of packets that get lost: "0.1 %".')


class WithinHost(_Table):
    """Between two devices of one host. The default is an assumption: 10 us, 10 GB/s."""

    latency: Seconds = Field(default=10e-6, ge=0, description="One way.")
    bandwidth: Bandwidth = Field(default=10e9, gt=0, description="Shared by all transfers inside a host.")


class WithinIsland(_Table):
    """Between two hosts of one island, where the island does not say."""

    latency: Seconds = Field(ge=0, examples=["0.2 ms"], description="One way.")
    bandwidth: Bandwidth = Field(gt=0, examples=["10 Gbps"], description="Of each pair of hosts, in each direction.")
    jitter: Seconds = _jitter()
    loss: Share = _loss()


class BetweenIslands(_Table):
    """Between two islands that have no link of their own."""

    latency: Seconds = Field(ge=0, examples=["30 ms"], description="One way.")
    bandwidth: Bandwidth = Field(gt=0, examples=["100 Mbps"], description="In each direction.")
    shared: bool = Field(
        default=False, description="All pairs of hosts of two islands share one pipe of this bandwidth."
    )
    price: PricePerByte = Field(default=0.0, ge=0, description='Price of traffic, in US dollars: "0.09 $/GB".')
    jitter: Seconds = _jitter()
    loss: Share = _loss()


class Defaults(_Table):
    """What holds where nothing more specific is said."""

    within_host: WithinHost = Field(default_factory=WithinHost)
    within_island: WithinIsland | None = None
    between_islands: BetweenIslands | None = None


class IslandTable(_Table):
    """A group of hosts on a fast network. Without any, all hosts are on one island called "main"."""

    name: str = Field(pattern=_NAME, examples=["oslo"], description=f"Its name: {_NAME_MEANING}")
    latency: Seconds | None = Field(
        default=None,
        ge=0,
        examples=["0.1 ms"],
        description="Between its hosts, one way (default: defaults.within_island).",
    )
    bandwidth: Bandwidth | None = Field(
        default=None,
        gt=0,
        examples=["10 Gbps"],
        description="Of each pair of its hosts (default: defaults.within_island).",
    )
    jitter: Seconds | None = Field(
        default=None,
        ge=0,
        examples=["0.1 ms"],
        description="Standard deviation of that latency (default: defaults.within_island).",
    )
    loss: Share | None = Field(
        default=None, ge=0, lt=1, description="Share of packets that get lost (default: defaults.within_island)."
    )


class HostTable(_Table):
    """A machine, where devices share one. A device that names no host is a machine of its own and needs no [[host]]."""

    name: str = Field(pattern=_NAME, examples=["node"], description=f"Its name: {_NAME_MEANING}")
    island: str | None = Field(
        default=None, examples=["oslo"], description="The island it is on; may be left out if there is only one."
    )
    count: int = Field(default=1, ge=1, description="How many such hosts; they are called node-0, node-1, …")
    up: Bandwidth | None = Field(
        default=None,
        gt=0,
        examples=["20 Mbps"],
        description="Its uplink, which all that its devices send shares (default: as fast as its fastest link)."
        " Set it for home connections.",
    )
    down: Bandwidth | None = Field(
        default=None, gt=0, examples=["100 Mbps"], description="Its downlink (default: as fast as its fastest link)."
    )
    memory: ByteCount | None = Field(
        default=None, gt=0, examples=["64 GiB"], description="Main memory (default: the sum over its devices)."
    )
    price_per_hour: PricePerHour = Field(default=0.0, ge=0, description='Its price in US dollars: "1.20 $/h".')


class DeviceTable(_Table):
    """What computes: one worker each."""

    name: str = Field(pattern=_NAME, examples=["gpu"], description=f"The worker's name: {_NAME_MEANING}")
    island: str | None = Field(
        default=None,
        examples=["oslo"],
        description="The island, if each device (or each per_host of them) is a host of its own.",
    )
    host: str | None = Field(
        default=None, examples=["node"], description="Or the [[host]] it is on; a host with a count means all of them."
    )
    count: int | None = Field(
        default=None,
        ge=1,
        examples=[16],
        description="How many, on all hosts together; they are called gpu-00, gpu-01, … (default: 1 per host).",
    )
    per_host: int | None = Field(default=None, ge=1, examples=[4], description="How many are on one host (default: 1).")
    kind: Literal["cpu", "cuda", "xpu", "mps"] = Field(default="cpu", description="Its torch device type.")
    speed: FlopsPerS = Field(
        gt=0,
        examples=["10 TFLOP/s"],
        description="What it attains on this model, not its peak (often a third of that).",
    )
    memory: ByteCount = Field(gt=0, examples=["24 GiB"], description="Its memory.")
    memory_bandwidth: MemoryBandwidth | None = Field(
        default=None,
        gt=0,
        examples=["400 GB/s"],
        description="Of its memory (default, assumed: 20 GB/s for a cpu, 400 GB/s for others).",
    )


class LinkTable(_Table):
    """A link that differs from the defaults, between islands or hosts; the more specific one wins."""

    from_: str = Field(
        alias="from", examples=["oslo"], description="An island, or a host (a host with a count: all of them)."
    )
    to: str = Field(examples=["bern"], description="Likewise.")
    latency: Seconds = Field(ge=0, examples=["20 ms"], description="One way.")
    bandwidth: Bandwidth = Field(
        gt=0, examples=["200 Mbps"], description="In this direction, and back unless told otherwise."
    )
    back_latency: Seconds | None = Field(
        default=None, ge=0, examples=["20 ms"], description="Of the way back, if it differs."
    )
    back_bandwidth: Bandwidth | None = Field(
        default=None, gt=0, examples=["50 Mbps"], description="Of the way back, if it differs."
    )
    one_way: bool = Field(default=False, description="Says nothing about the way back.")
    shared: bool = Field(default=False, description="All pairs of hosts that this link is about share one pipe.")
    price: PricePerByte = Field(
        default=0.0, ge=0, description='Price of traffic, in US dollars, both ways: "0.09 $/GB".'
    )
    jitter: Seconds = _jitter()
    loss: Share = _loss()


class ClusterFile(_Table):
    """What there is."""

    name: str | None = Field(
        default=None,
        min_length=1,
        examples=["two-cities"],
        description="The cluster's name (default: that of the file).",
    )
    defaults: Defaults = Field(default_factory=Defaults)
    island: list[IslandTable] = Field(default_factory=list)
    host: list[HostTable] = Field(default_factory=list)
    device: list[DeviceTable] = Field(min_length=1)
    link: list[LinkTable] = Field(default_factory=list)
