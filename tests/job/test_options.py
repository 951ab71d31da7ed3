"""Names and options of strategies: checked when a run is built, with the file and line of the mistake."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, Field

from shoal import job, registry
from shoal.errors import UserError
from shoal.job import Job, Mix, validate_options
from shoal.units import Seconds


class Options(BaseModel):
    model_config = ConfigDict(extra="forbid")
    period: int = Field(default=4, ge=1)
    wait: Seconds = 1.0


@pytest.fixture(autouse=True)
def strategies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every seam has the strategies `plain` (no options) and `rich` (`Options`), and there is a module of one's own."""
    plain, rich, own = ModuleType("plain"), ModuleType("rich"), ModuleType("own_strategies")
    vars(rich)["Options"] = Options
    vars(own)["Mine"] = object
    monkeypatch.setitem(sys.modules, "own_strategies", own)
    known, real = {"plain": plain, "rich": rich}, registry.load

    def load(seam: str, name: str) -> Any:
        return known[name] if name in known else real(seam, name)

    monkeypatch.setattr(registry, "names", lambda seam: sorted([*known, "adamw", "all-reduce", "streams"]))
    monkeypatch.setattr(registry, "load", load)
    known["adamw"] = known["all-reduce"] = known["streams"] = plain


def loaded(folder: Path, text: str, *overrides: str) -> Job:
    path = folder / "job.toml"
    path.write_text(text, encoding="utf-8")
    return job.load(path, overrides)


def refused(folder: Path, text: str, *overrides: str) -> str:
    with pytest.raises(UserError) as caught:
        validate_options(loaded(folder, text, *overrides))
    return str(caught.value).replace(f"{folder}/", "")


def test_good_options_are_returned_validated(tmp_path: Path) -> None:
    found = validate_options(loaded(tmp_path, '[mixing]\nname = "rich"\nperiod = 2\nwait = "20 ms"\n'))
    mixing = found["mixing"]
    assert isinstance(mixing, Options) and (mixing.period, mixing.wait) == (2, 0.02)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[mixing]\nname = "rihc"', "job.toml:2: mixing.name: no such mixing, got 'rihc'; did you mean 'rich'?"),
        ('[optimizer]\nname = "rihc"', "job.toml:2: optimizer.name: no such optim, got 'rihc'; did you mean 'rich'?"),
        (
            '[mixing]\ntopology = "plian"',
            "job.toml:2: mixing.topology: no such topology, got 'plian'; did you mean 'plain'?",
        ),
        (
            '[run]\ntransport = "plian"',
            "job.toml:2: run.transport: no such transport, got 'plian'; did you mean 'plain'?",
        ),
        (
            '[mixing]\nname = "rich"\npreiod = 3',
            "job.toml:3: mixing.preiod: unknown key in `preiod = 3`; did you mean 'period'?",
        ),
        (
            '[mixing]\nname = "rich"\nbukcet = 3',
            "job.toml:3: mixing.bukcet: unknown key in `bukcet = 3`; did you mean 'bucket'?",
        ),
        (
            '[mixing]\nname = "rich"\nlr = 3',
            "job.toml:3: mixing.lr: unknown key in `lr = 3`; it belongs in [optimizer]",
        ),
        ('[mixing]\nname = "rich"\nperiod = 0', "job.toml:3: mixing.period: must be at least 1, got 0"),
        (
            '[mixing]\nname = "rich"\nwait = 3',
            'job.toml:3: mixing.wait: a time needs a unit, got 3; write "3 ms", "3 s" or "3 min"',
        ),
        (
            '[optimizer]\nname = "plain"\nbetas = 3',
            "job.toml:3: optimizer.betas: unknown key in `betas = 3`; known here: clip, lr, name, weight_decay",
        ),
    ],
)
def test_mistakes(tmp_path: Path, text: str, said: str) -> None:
    """Case B2, for keys that only the strategy knows."""
    assert refused(tmp_path, text) == said


def test_all_mistakes_are_told_at_once(tmp_path: Path) -> None:
    said = refused(tmp_path, '[mixing]\nname = "rich"\nperiod = 0\nx = 1\n[optimizer]\nname = "y"\n')
    assert said.startswith("job.toml: 3 problems")


def test_a_flag_is_named(tmp_path: Path) -> None:
    said = refused(tmp_path, '[mixing]\nname = "rich"\n', "mixing.period=0")
    assert said == "--set mixing.period=0: mixing.period: must be at least 1, got 0"


def test_a_strategy_of_ones_own_without_options_takes_what_it_is_given(tmp_path: Path) -> None:
    found = validate_options(loaded(tmp_path, '[optimizer]\nname = "own_strategies:Mine"\nanything = 1\n'))
    assert "optim" not in found


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("own_strategies:Yours", "no 'Yours' in this module"),
        ("no_such_module_anywhere:X", "cannot import this optim (No module named 'no_such_module_anywhere')"),
    ],
)
def test_a_strategy_of_ones_own_that_is_not_there_is_refused(tmp_path: Path, name: str, why: str) -> None:
    said = refused(tmp_path, f'[optimizer]\nname = "{name}"\n')
    assert said.startswith(f"job.toml:2: optimizer.name: {why}, got '{name}'; ")


def test_a_job_made_in_code_is_checked_too() -> None:
    found = validate_options(Job(mixing=Mix.model_validate({"name": "rich", "wait": 3.0})))
    assert isinstance(found["mixing"], Options) and found["mixing"].wait == 3.0
    with pytest.raises(UserError, match=r"^mixing.period: must be at least 1, got 0$"):
        validate_options(Job(mixing=Mix.model_validate({"name": "rich", "period": 0})))
