"""The command line as a whole: help, errors, exit statuses, start-up, and the page that documents it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer

from shoal.cli.main import app
from shoal.errors import Diverged, PeerLost, ShoalError, UserError

Shoal = Callable[..., Any]
ROOT = Path(__file__).parents[2]


def _commands() -> list[list[str]]:
    """Every command, groups' own ones included."""

    def walk(command: Any, words: list[str]) -> list[list[str]]:
        inner = getattr(command, "commands", None)
        return [words] if inner is None else [found for name in inner for found in walk(inner[name], [*words, name])]

    return walk(typer.main.get_command(app), [])


COMMANDS = _commands()


def test_the_commands_are_a_decision() -> None:
    """A new command or flag changes this list on purpose, or not at all."""
    assert sorted(" ".join(words) for words in COMMANDS) == [
        "cluster show",
        "compare",
        "doctor",
        "init",
        "lab cut",
        "lab down",
        "lab heal",
        "lab kill",
        "lab pause",
        "lab play",
        "lab resume",
        "lab run",
        "lab set",
        "lab status",
        "lab up",
        "list",
        "probe",
        "replay",
        "simulate",
        "train",
        "version",
    ]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_help_of_every_command_has_an_example_of_it(shoal: Shoal, words: list[str]) -> None:
    ran = shoal(*words, "--help")
    assert ran.status == 0 and f"  shoal {' '.join(words)}" in ran.out.partition("Example")[2]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_page_has_every_command_and_every_flag(shoal: Shoal, words: list[str]) -> None:
    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    section = page.partition(f"## shoal {' '.join(words)}\n")[2].partition("\n## ")[0]
    assert f"shoal {' '.join(words)}" in section, "no section with an example"
    command: Any = typer.main.get_command(app)
    for word in words:
        command = command.commands[word]
    flags = [flag for parameter in command.params for flag in parameter.opts if flag.startswith("--")]
    assert [flag for flag in flags if flag != "--help" and f"`{flag}" not in section] == []


def test_no_command_shows_help(shoal: Shoal) -> None:
    ran = shoal()
    assert "Commands:" in ran.out + ran.err and "shoal train job.toml" in ran.out + ran.err


def test_unknown_flag_is_refused_with_the_nearest(shoal: Shoal) -> None:
    """Case B2: a misspelt flag is never ignored."""
    ran = shoal("train", "job.toml", "--resum")
    assert ran.status == 2 and "--resum" in ran.err and "--resume" in ran.err


@pytest.mark.parametrize(
    ("error", "status", "text"),
    [
        (
            UserError("must be more than 0", file="job.toml", line=3, key="run.steps", value=0, mend="write 1"),
            2,
            "job.toml:3: run.steps",
        ),
        (PeerLost("b", 12, "connection closed"), 3, "peer 'b' at step 12: connection closed"),
        (Diverged("loss is\nnan"), 4, "loss is nan"),
        (ShoalError("something"), 1, "something"),
    ],
)
def test_an_expected_error_is_one_line_and_its_status(
    shoal: Shoal, monkeypatch: pytest.MonkeyPatch, error: ShoalError, status: int, text: str
) -> None:
    _make_listing_raise(monkeypatch, error)
    ran = shoal("list")
    assert ran.status == status and ran.out == ""
    assert ran.err.startswith("shoal: ") and text in ran.err and ran.err.count("\n") == 1


def test_debug_shows_the_traceback(shoal: Shoal, monkeypatch: pytest.MonkeyPatch) -> None:
    _make_listing_raise(monkeypatch, UserError("wrong"))
    ran = shoal("--debug", "list")
    assert ran.status == 2 and "Traceback" in ran.err


def test_anything_else_is_a_defect_with_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    from shoal.cli.main import main

    _make_listing_raise(monkeypatch, ZeroDivisionError("a defect"))
    with pytest.raises(ZeroDivisionError):
        main(["list"])


def test_interrupt_ends_with_130(shoal: Shoal, monkeypatch: pytest.MonkeyPatch) -> None:
    _make_listing_raise(monkeypatch, KeyboardInterrupt())
    assert shoal("list").status == 130


def test_help_list_init_and_completion_do_not_import_torch(tmp_path: Path) -> None:
    """What a person waits for at the prompt stays instant."""
    program = f"""
import os, sys
from shoal.cli.main import main
os.environ["_SHOAL_COMPLETE"] = "complete_bash"
os.environ["COMP_WORDS"], os.environ["COMP_CWORD"] = "shoal list ", "2"
def run(*arguments):
    try: main(arguments)
    except SystemExit as ended: assert ended.code in (0, None), (arguments, ended.code)
run()
for name in ("_SHOAL_COMPLETE", "COMP_WORDS", "COMP_CWORD"): del os.environ[name]
for arguments in (["--help"], ["train", "--help"], ["list"], ["version"], ["init", {str(tmp_path)!r}]): run(*arguments)
heavy = [name for name in ("torch", "numpy", "rich.live") if name in sys.modules]
assert not heavy, heavy
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("mixing\noptim\n") and "wrote" in ran.stdout


def test_module_runs_like_the_command() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "shoal", "version"], capture_output=True, text=True, timeout=60, check=True
    )
    assert ran.stdout.startswith("shoal ")


def _make_listing_raise(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def fail(seam: str) -> None:
        raise error

    monkeypatch.setattr("shoal.registry.entries", fail)
