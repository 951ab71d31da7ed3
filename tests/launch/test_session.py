"""Worker processes themselves, where no other worker is needed to see how they behave."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from shoal import cluster as clusters
from shoal import job as jobs
from shoal.errors import UserError
from shoal.launch.prepare import Prepared
from shoal.launch.processes import launch, log_path
from shoal.launch.session import torch_device
from shoal.plan import Costs, Plan
from shoal.worker import RunFolder

MIXED = """
[[device]]
name = "slow"
speed = "10 GFLOP/s"
memory = "1 GiB"
[[device]]
name = "fast"
kind = "cuda"
speed = "10 TFLOP/s"
memory = "24 GiB"
count = 2
[defaults.within_island]
latency = "1 ms"
bandwidth = "1 Gbps"
"""


@pytest.fixture
def mixed(tmp_path: Path) -> Prepared:
    plan = Plan(
        routes=(), blocks=(), sync=(), island={}, costs=Costs(forward_flops=1, backward_flops=1), model_digest=""
    )
    return Prepared(job=jobs.Job(), cluster=clusters.parse(MIXED), plan=plan, folder=RunFolder(tmp_path))


def test_cpu_workers_compute_on_the_cpu(mixed: Prepared) -> None:
    assert torch_device(mixed, "slow") == torch.device("cpu")


def test_gpu_workers_get_one_each(mixed: Prepared, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert [torch_device(mixed, f"fast-{n}") for n in (0, 1)] == [torch.device("cuda", 0), torch.device("cuda", 1)]
    assert torch_device(mixed, "fast-1", number=0) == torch.device("cuda", 0)  # the first of another machine


def test_missing_gpu_is_said(mixed: Prepared, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserError, match="'fast-0' is of kind 'cuda', and this machine has 0"):
        torch_device(mixed, "fast-0")


def test_worker_process_reports_its_failure_and_logs_the_traceback(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path).make()
    ending = launch(folder, ("a",))
    assert (ending.exit_status, [f.code for f in ending.failures]) == (2, ["user"])
    assert "it has no job.toml" in ending.failures[0].text
    assert "Traceback" in log_path(folder, "a").read_text()
