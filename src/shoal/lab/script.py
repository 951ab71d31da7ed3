"""What happens to a lab while it runs: a change to its links or its hosts, now or at a time that a script says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from shoal import schema
from shoal.errors import UserError
from shoal.files import Source, check
from shoal.units import Bandwidth, Seconds, Share

Kind = Literal["set", "cut", "heal", "pause", "resume", "kill"]
_HOST_ONLY = ("pause", "resume", "kill")


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One thing that happens.

    Args:
        do: ``"set"`` a link's figures; ``"cut"`` or ``"heal"`` a link, or all links of a host; ``"pause"``,
            ``"resume"`` or ``"kill"`` all processes of a host (killed ones take their links with them).
        at: seconds after the script's start.
        from_, to: hosts; both directions, unless `one_way`.
        bandwidth: IP bytes/s. The other figures are those of a cluster file.
    """

    do: Kind
    at: float = 0.0
    host: str | None = None
    from_: str | None = None
    to: str | None = None
    one_way: bool = False
    bandwidth: float | None = None
    latency: float | None = None
    jitter: float | None = None
    loss: float | None = None

    def problem(self) -> tuple[str, str, str] | None:
        """Key, problem and mend, if this change says too little or too much."""
        link = self.from_ is not None or self.to is not None
        figures = [key for key in ("bandwidth", "latency", "jitter", "loss") if getattr(self, key) is not None]
        if link and (self.from_ is None or self.to is None):
            return "from", "a link has two ends", "write from and to"
        if link == (self.host is not None):
            return "host", "one place too many or too few", "write from and to, or host"
        if self.do in _HOST_ONLY and link:
            return "do", f"{self.do} is about a host", "write host instead of from and to"
        if self.do == "set" and not (link and figures):
            return "do", "nothing to set", "write from, to, and bandwidth, latency, jitter or loss"
        if self.do != "set" and figures:
            return figures[0], f"{self.do} has no figures", 'leave it out, or write do = "set"'
        if self.jitter and self.latency == 0:
            return "jitter", "a way without latency cannot have jitter", "write its mean latency"
        return None

    def order(self) -> dict[str, Any]:
        """As the switch takes it."""
        told = {key: value for key, value in asdict(self).items() if value is not None}
        names = {"from_": "from", "latency": "latency_s", "jitter": "jitter_s"}
        return {names.get(key, key): value for key, value in told.items()}


class _EventTable(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    at: Seconds = Field(ge=0, examples=["10 s"], description="After the first training step, or the script's start.")
    do: Kind = Field(examples=["cut"], description="What happens.")
    host: str | None = Field(default=None, examples=["bern"], description="To this host, or to all its links.")
    from_: str | None = Field(default=None, alias="from", examples=["oslo"], description="Or to the link from here …")
    to: str | None = Field(default=None, examples=["bern"], description="… to there, and back.")
    one_way: bool = Field(default=False, description="Not back.")
    bandwidth: Bandwidth | None = Field(default=None, gt=0, examples=["10 Mbps"], description="Of the link, from now.")
    latency: Seconds | None = Field(default=None, ge=0, examples=["50 ms"], description="Likewise; one way.")
    jitter: Seconds | None = Field(default=None, ge=0, examples=["5 ms"], description="Likewise.")
    loss: Share | None = Field(default=None, ge=0, lt=1, examples=["1 %"], description="Likewise.")


class ScriptFile(BaseModel):
    """What happens to a lab, and when."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    event: list[_EventTable] = Field(min_length=1)


def load_script(path: str | Path, hosts: Sequence[str]) -> list[Change]:
    """The changes in the script at `path`, in the order of their times.

    Args:
        hosts: those of the cluster that it is for.

    Raises:
        UserError: names file, line, key, value and mend of every problem.
    """
    source = Source.read(path)
    changes = [Change(**dict(table)) for table in source.validate(ScriptFile).event]
    problems: list[UserError] = []
    for n, change in enumerate(changes):
        if found := change.problem():
            key, problem, mend = found
            problems.append(source.error(("event", n, key), problem, mend=mend, shown=False))
        for key, place in (("host", change.host), ("from", change.from_), ("to", change.to)):
            if place is not None and place not in hosts:
                problems.append(
                    source.error(("event", n, key), "no such host", mend=schema.nearest(place, list(hosts)))
                )
    check(problems, file=source.file)
    return sorted(changes, key=lambda change: change.at)
