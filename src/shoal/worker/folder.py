"""Where a run keeps its things: one folder, the same in every world.

runs/NAME/1/
  job.toml  cluster.toml  plan.json     what was run
  metrics.jsonl                         progress, as the leader saw it: one object per logged step
  events/PEER.jsonl                     the event log of each peer (steps, arrival order, peers lost): enough to replay
  spans/PEER.jsonl                      spans of each peer, merged into timeline.json at the end
  checkpoints/step-00000100/            one safetensors file per peer and a manifest, whole or absent
  timeline.json  summary.json
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class RunFolder:
    root: Path

    @property
    def job(self) -> Path:
        return self.root / "job.toml"

    @property
    def cluster(self) -> Path:
        return self.root / "cluster.toml"

    @property
    def plan(self) -> Path:
        return self.root / "plan.json"

    @property
    def metrics(self) -> Path:
        return self.root / "metrics.jsonl"

    @property
    def timeline(self) -> Path:
        return self.root / "timeline.json"

    @property
    def summary(self) -> Path:
        return self.root / "summary.json"

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints"

    def events(self, peer: str) -> Path:
        return self.root / "events" / f"{peer}.jsonl"

    def spans(self, peer: str) -> Path:
        return self.root / "spans" / f"{peer}.jsonl"

    def make(self) -> RunFolder:
        """Create the folder and its sub-folders."""
        for folder in (self.root, self.root / "events", self.root / "spans", self.checkpoints):
            folder.mkdir(parents=True, exist_ok=True)
        return self

    @classmethod
    def fresh(cls, runs: Path, name: str) -> RunFolder:
        """The next unused number under ``runs/name``; two runs started at once get different ones."""
        number = max(_numbers(runs / name), default=0)
        while True:
            number += 1
            root = runs / name / str(number)
            root.parent.mkdir(parents=True, exist_ok=True)
            try:
                root.mkdir()
            except FileExistsError:
                continue
            return cls(root).make()

    @classmethod
    def latest(cls, runs: Path, name: str) -> RunFolder | None:
        """The newest run of this name, or None."""
        numbers = _numbers(runs / name)
        return cls(runs / name / str(max(numbers))) if numbers else None


def _numbers(folder: Path) -> list[int]:
    return [int(p.name) for p in folder.iterdir() if p.is_dir() and p.name.isdigit()] if folder.is_dir() else []
