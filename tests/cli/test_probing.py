"""``shoal probe``: what it refuses before it measures, what it writes, and that it leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from probe.virtual import made_survey
from shoal import cluster as clusters
from shoal.cli import probing
from shoal.errors import UserError
from shoal.probe import Progress, Survey

PROGRAM = """
import typer
from shoal.cli import main, probing
if "probe" not in [command.name or command.callback.__name__ for command in main.app.registered_commands]:
    probing.add_to(main.app)
main.main()
"""
Probe = Callable[..., str]


@pytest.fixture
def probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Probe:
    """Run the command in this process, in an empty folder; gives what it printed. Errors are raised."""
    monkeypatch.chdir(tmp_path)
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    app = typer.Typer(rich_markup_mode=None)
    app.callback()(lambda: None)
    probing.add_to(app)

    def run(*arguments: object) -> str:
        done = CliRunner().invoke(app, ["probe", *map(str, arguments)], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done.output

    return run


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, object]]:
    """Replaces the measuring; keeps what it was called with."""
    calls: list[dict[str, object]] = []

    def measure(peers: list[str], **options: object) -> Survey:
        calls.append({"peers": peers, **options})
        tell = options["progress"]
        assert callable(tell)
        tell(Progress(done=1, total=1, text="all"))
        return made_survey({"a0": 1, "a1": 1, "x": 1}, SPEEDS)

    monkeypatch.setattr("shoal.probe.measure", measure)
    return calls


HOSTS = ("a0", "a1", "x")
SPEEDS = {(a, b): 125e6 if a[0] == b[0] else 1e6 for a in HOSTS for b in HOSTS if a != b}


def test_it_writes_a_cluster_and_shows_it(probe: Probe, fake: list[dict[str, object]]) -> None:
    out = probe("--seconds", "2", "--bytes", "10 MB", "--workers", "3")
    cluster = clusters.load("cluster.toml")
    assert cluster.links["a0", "a1"].bandwidth_bytes_per_s == 125e6
    assert "1/1  all" in out and "from \\ to" in out and out.endswith("wrote cluster.toml\n")
    assert "island-0: a0, a1" in out and "island-1: x" in out
    (call,) = fake
    assert call["peers"] == ["worker-0", "worker-1", "worker-2"]
    settings = call["settings"]
    assert (getattr(settings, "seconds", None), getattr(settings, "nbytes", None)) == (2.0, 10e6)


def test_json_lines_end_with_the_survey(probe: Probe, fake: list[dict[str, object]]) -> None:
    *progress, last = [json.loads(line) for line in probe("--json", "--out", "x.toml").splitlines()]
    assert [line["kind"] for line in progress] == ["progress"]
    assert (last["kind"], last["out"], last["islands"]) == (
        "survey",
        "x.toml",
        {"island-0": ["a0", "a1"], "island-1": ["x"]},
    )
    assert Survey.from_json(last).ways["a0", "a1"].bandwidth.value == 125e6


def test_an_update_keeps_and_tells_what_has_changed(probe: Probe, fake: list[dict[str, object]]) -> None:
    probe()
    text = Path("cluster.toml").read_text(encoding="utf-8")
    Path("cluster.toml").write_text(
        text.replace('"1 Gbps"', '"2 Gbps"').replace('"0 $/h"', '"3 $/h"'), encoding="utf-8"
    )
    out = probe("--update", "cluster.toml")
    assert "a0 → a1 bandwidth: 2 Gbps → 1 Gbps (-50%)" in out
    updated = clusters.load("cluster.toml")
    assert updated.links["a0", "a1"].bandwidth_bytes_per_s == 125e6
    assert updated.hosts["x"].price_per_hour == 3.0
    assert "nothing has changed" in probe("--update", "cluster.toml")


def test_names_come_from_a_cluster_file(probe: Probe, fake: list[dict[str, object]]) -> None:
    Path("names.toml").write_text(
        'device = [{ name = "gpu", count = 2, kind = "cuda", speed = "1 GFLOP/s", memory = "1 GiB" }]\n'
        "[defaults.within_island]\nlatency = '1 ms'\nbandwidth = '1 Gbps'\n"
    )
    probe("--cluster", "names.toml")
    (call,) = fake
    assert call["names"] == {"gpu-0": ("gpu-0", "gpu-0"), "gpu-1": ("gpu-1", "gpu-1")}
    assert call["kinds"] == {"gpu-0": "cuda", "gpu-1": "cuda"} and call["numbers"] == {"gpu-0": 0, "gpu-1": 1}


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ((), "exists already"),
        (("--out", "no/such/folder.toml"), "cannot write"),
        (("--out", "new.toml", "--bytes", "10"), "--bytes"),
        (("--out", "new.toml", "--precision", "float8"), "--precision"),
        (("--out", "new.toml", "--workers", "2", "--cluster", "cluster.toml"), "--workers"),
        (("--update", "absent.toml"), "absent.toml"),
        (("--update", "cluster.toml"), "cluster.toml"),
        (("--update", "other.toml", "--out", "cluster.toml"), "exists already"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_measured(
    probe: Probe, fake: list[dict[str, object]], arguments: tuple[str, ...], what: str
) -> None:
    Path("cluster.toml").write_text("this is = no cluster", encoding="utf-8")
    with pytest.raises(UserError, match=what):
        probe(*arguments)
    assert fake == [] and os.listdir() == ["cluster.toml"]


def test_force_overwrites(probe: Probe, fake: list[dict[str, object]]) -> None:
    Path("cluster.toml").write_text("old", encoding="utf-8")
    probe("--force")
    assert clusters.load("cluster.toml").peers == ("a0-0", "a1-0", "x-0")


def test_the_wrong_number_of_ranks_is_refused(
    probe: Probe, fake: list[dict[str, object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "3")
    Path("one.toml").write_text('device = [{ name = "x", speed = "1 GFLOP/s", memory = "1 GiB" }]')
    with pytest.raises(UserError, match="WORLD_SIZE"):
        probe("--cluster", "one.toml")
    with pytest.raises(UserError, match="--workers"):
        probe("--workers", "2")


@pytest.mark.skipif(sys.platform != "linux", reason="looks at processes in /proc")
def test_ctrl_c_leaves_no_process_and_no_half_file(tmp_path: Path) -> None:
    argv = [
        sys.executable,
        "-c",
        PROGRAM,
        "probe",
        "--workers",
        "2",
        "--seconds",
        "600",
        "--bytes",
        "1000 TB",
        "--json",
    ]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    run = subprocess.Popen(
        argv, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert run.stdout is not None and json.loads(run.stdout.readline())["kind"] == "progress"
        children = [int(pid) for pid in Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split()]
        assert len(children) == 2
        run.send_signal(signal.SIGINT)
        _, err = run.communicate(timeout=60)
    finally:
        run.kill()
        run.communicate()
    assert (run.returncode, err) == (130, "shoal: stopped before everything was measured; nothing was written\n")
    assert os.listdir(tmp_path) == []
    assert not any(Path(f"/proc/{pid}").exists() for pid in children)


@pytest.mark.slow
def test_ranks_measure_together_and_the_first_one_writes(tmp_path: Path) -> None:
    port = 30_000 + os.getpid() % 10_000
    place = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    argv = [sys.executable, "-c", PROGRAM, "probe", "--bytes", "20 MB", "--seconds", "0.5"]
    runs = []
    for rank in ("0", "1"):
        environment = {**os.environ, **place, "RANK": rank, "SHOAL_LAB_HOST": f"host-{rank}"}
        runs.append(subprocess.Popen(argv, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True))
    said = [run.communicate(timeout=120)[0] for run in runs]
    assert [run.returncode for run in runs] == [0, 0] and said[1] == ""
    assert said[0].endswith("wrote cluster.toml\n")
    cluster = clusters.load(tmp_path / "cluster.toml")
    assert cluster.peers == ("worker-0", "worker-1") and set(cluster.hosts) == {"host-0", "host-1"}
