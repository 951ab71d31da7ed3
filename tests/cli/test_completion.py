from __future__ import annotations

from pathlib import Path

import pytest

from shoal.cli.completion import complete_key, complete_run, complete_seam, complete_toml
from shoal.registry import names


def test_seams() -> None:
    assert complete_seam("t") == ["topology", "transport"]


def test_keys_of_a_job_and_the_strategies_they_name() -> None:
    assert complete_key("run.ste") == ["run.steps="]
    assert "optimizer.lr=" in complete_key("optimizer.") and "name=" in complete_key("")
    assert complete_key("mixing.topology=") == [f"mixing.topology={name}" for name in names("topology")]
    assert complete_key("run.steps=") == []


def test_files_and_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("job.toml", "notes.txt", ".hidden.toml"):
        (tmp_path / name).touch()
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "a.toml").touch()
    monkeypatch.chdir(tmp_path)
    assert complete_toml("jo") == ["job.toml", "jobs/"]
    assert complete_toml("jobs/") == ["jobs/a.toml"]
    assert complete_toml(f"{tmp_path}/job.") == [f"{tmp_path}/job.toml"]
    assert complete_run("") == ["jobs/"]
    assert complete_toml("nowhere/") == []
