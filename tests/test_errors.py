"""Errors: what they say, that they survive a trip between processes, and that each is documented."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from shoal import errors
from shoal.errors import BadMessage, Deadlock, Diverged, Late, PeerError, PeerLost, Race, ShoalError, UserError

PAGE = Path(__file__).parent.parent / "docs" / "errors.md"
ALL = [cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, ShoalError)]


def test_a_user_error_names_file_line_key_value_and_mend() -> None:
    error = UserError("must be at least 1", mend="write 1", file="job.toml", key="run.steps", value=0, line=3)
    assert str(error) == "job.toml:3: run.steps: must be at least 1, got 0; write 1"
    assert (error.problem, error.mend, error.file, error.key, error.value, error.line) == (
        "must be at least 1",
        "write 1",
        "job.toml",
        "run.steps",
        0,
        3,
    )


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (UserError("odd"), "odd"),
        (UserError("odd", key="a.b"), "a.b: odd"),
        (UserError("odd", line=3), "line 3: odd"),
        (UserError("odd", file="f"), "f: odd"),
        (UserError("odd", value="x"), "odd, got 'x'"),
    ],
)
def test_a_user_error_leaves_out_what_is_not_known(error: UserError, text: str) -> None:
    assert str(error) == text


@pytest.mark.parametrize(
    "error",
    [
        UserError("odd", mend="even", file="f", key="k", value=3, line=4),
        PeerError("a", 3, "why"),
        PeerLost("a", 3, "why"),
        BadMessage("a", 3, "why"),
        Late("a", 3, "why"),
        Deadlock("who waits"),
        Race("who writes"),
        Diverged("nan"),
    ],
)
def test_errors_survive_a_trip_between_processes(error: ShoalError) -> None:
    back = pickle.loads(pickle.dumps(error))
    assert type(back) is type(error) and str(back) == str(error) and vars(back) == vars(error)


def test_a_peer_error_names_the_peer_and_the_step() -> None:
    assert str(PeerLost("south-1", 412, "connection closed")) == "peer 'south-1' at step 412: connection closed"


def test_codes_are_unique() -> None:
    assert len({cls.code for cls in ALL}) == len(ALL)


@pytest.mark.parametrize("cls", ALL, ids=lambda cls: cls.code)
def test_every_code_is_documented_with_status_cause_and_mend(cls: type[ShoalError]) -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert f"| [`{cls.code}`](#{cls.code}) | {cls.exit_status} |" in page
    section = page.partition(f"## `{cls.code}`\n")[2].partition("\n## ")[0]
    assert "**Cause.**" in section and "**Mend.**" in section


def test_no_code_is_documented_that_does_not_exist() -> None:
    headings = [line[4:-1] for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("## `")]
    assert sorted(headings) == sorted(cls.code for cls in ALL)
