"""Reading a file that a person wrote: every mistake names file, line, key, value and mend, all of them at once."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, model_validator

from shoal.errors import UserError
from shoal.files import Source, check, read_toml, several
from shoal.units import Bandwidth, WrongValueError


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class Link(Strict):
    to: str = Field(pattern="^[a-z]+$", description="Lower-case letters.", examples=["b"])
    latency_ms: float = Field(default=1.0, ge=0, le=1000)
    bandwidth: Bandwidth = Field(default=1e6, gt=0)


class Inner(Strict):
    depth: int = Field(default=1, lt=10)


class Course(Strict):
    steps: int = Field(default=100, ge=1)
    kind: Literal["fast", "slow"] = "fast"
    quiet: bool = False
    names: list[str] = Field(default_factory=list)
    inner: Inner = Field(default_factory=Inner)

    @model_validator(mode="after")
    def _slow_is_short(self) -> Course:
        if self.kind == "slow" and self.steps > 10:
            raise WrongValueError("slow is short", "write 10 or less", key="steps")
        return self


class File(Strict):
    title: str = Field(default="x", min_length=1)
    run: Course = Field(default_factory=Course)
    link: list[Link] = Field(default_factory=list)


def refused(tmp_path: Path, text: str, *overrides: str) -> list[str]:
    """The lines of the refusal of a file `f.toml` with this text."""
    path = tmp_path / "f.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UserError) as caught:
        read_toml(path, File, overrides=overrides)
    return [line.strip().replace(f"{tmp_path}/", "") for line in str(caught.value).splitlines()]


def test_a_good_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "f.toml"
    path.write_bytes(b'\xef\xbb\xbf[run]\r\nsteps = 20\r\n[[link]]\r\nto = "b"\r\nbandwidth = "8 Mbps"\r\n')
    read = read_toml(path, File)
    assert read.run.steps == 20 and read.link[0].bandwidth == 1e6


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[run]\nsteps = 1\nstpes = 3", "f.toml:3: run.stpes: unknown key in `stpes = 3`; did you mean 'steps'?"),
        (
            "[[link]]\nto='b'\nlatncy_ms = 80",
            "f.toml:3: link[0].latncy_ms: unknown key in `latncy_ms = 80`; did you mean 'latency_ms'?",
        ),
        (
            "[[link]]\nto='b'\nBandwith = '10 Mbps'",
            "f.toml:3: link[0].Bandwith: unknown key in `Bandwith = \"10 Mbps\"`; did you mean 'bandwidth'?",
        ),
        ("steps = 20", "f.toml:1: steps: unknown key in `steps = 20`; it belongs in [run]"),
        ("[run]\nlatency-ms = 1", "f.toml:2: run.latency-ms: unknown key in `latency-ms = 1`; it belongs in [[link]]"),
        (
            "[run]\ntitle = 'a'",
            'f.toml:2: run.title: unknown key in `title = "a"`; it belongs at the top, before the first table',
        ),
        ("[run]\ndepth = 2", "f.toml:2: run.depth: unknown key in `depth = 2`; it belongs in [run.inner]"),
        (
            "[run]\nbandwidht = 2",
            "f.toml:2: run.bandwidht: unknown key in `bandwidht = 2`; did you mean 'bandwidth' in [[link]]?",
        ),
        (
            "[run]\n\nzzz = 2",
            "f.toml:3: run.zzz: unknown key in `zzz = 2`; known here: inner, kind, names, quiet, steps",
        ),
        ("\n[rnu]\nsteps = 3", "f.toml:2: rnu: unknown table; did you mean 'run'?"),
    ],
)
def test_unknown_keys(tmp_path: Path, text: str, said: str) -> None:
    """Case B2: a misspelt key, a wrong capital, the right key at the wrong level."""
    assert refused(tmp_path, text) == [said]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[run]\nsteps = '20'", "f.toml:2: run.steps: must be a whole number, got '20'; write e.g. steps = 100"),
        ("[run]\nsteps = 2.0", "f.toml:2: run.steps: must be a whole number, got 2.0; write e.g. steps = 100"),
        ("[run]\nsteps = 0", "f.toml:2: run.steps: must be at least 1, got 0"),
        ("[run.inner]\ndepth = 10", "f.toml:2: run.inner.depth: must be less than 10, got 10"),
        ("run = { inner = { depth = 10 } }", "f.toml:1: run.inner.depth: must be less than 10, got 10"),
        ("run.inner.depth = 10", "f.toml:1: run.inner.depth: must be less than 10, got 10"),
        ("[run]\nquiet = 1", "f.toml:2: run.quiet: must be true or false, got 1; write e.g. quiet = false"),
        ("[run]\nnames = 'a'", "f.toml:2: run.names: must be a list, got 'a'; write e.g. names = []"),
        ("[run]\nnames = ['a',\n 2]", "f.toml:3: run.names[1]: must be text in quotes, got 2"),
        ("[run]\nkind = 'fsat'", "f.toml:2: run.kind: no such choice, got 'fsat'; did you mean 'fast'?"),
        ("[run]\nkind = 'x'", "f.toml:2: run.kind: no such choice, got 'x'; write 'fast' or 'slow'"),
        ("[run]\nkind = 'slow'\nsteps = 20", "f.toml:3: run.steps: slow is short, got 20; write 10 or less"),
        ("[run]\nkind = 'slow'", "f.toml:1: run.steps: slow is short; write 10 or less"),
        ("run = 3", "f.toml:1: run: must be a table, got 3; write e.g. [run]"),
        ("[link]\nto = 'b'", "f.toml:1: link: must be a list; write e.g. [[link]]"),
        ("title = ''", "f.toml:1: title: must not be empty, got ''; write e.g. title = \"x\""),
        ("[[link]]\n[[link]]\nto = 'b'", 'f.toml:1: link[0].to: the key is missing; write e.g. to = "b"'),
        (
            "[[link]]\nto = 'B'",
            "f.toml:2: link[0].to: not of the right form, got 'B'; write e.g. to = \"b\" (Lower-case letters.)",
        ),
        (
            "[[link]]\nto = 'b'\nlatency_ms = inf",
            "f.toml:3: link[0].latency_ms: must be finite, got inf; write e.g. latency_ms = 1.0",
        ),
        ("[[link]]\nto = 'b'\nbandwidth = '0 Mbps'", "f.toml:3: link[0].bandwidth: must be more than 0, got '0 Mbps'"),
        (
            "[[link]]\nto = 'b'\n[[link]]\nto = 'b'\nbandwidth = 100",
            "f.toml:5: link[1].bandwidth: a bandwidth needs a unit, got 100; "
            'write "100 Mbps" (megabits per second) or "100 MB/s" (megabytes per second)',
        ),
    ],
)
def test_wrong_values(tmp_path: Path, text: str, said: str) -> None:
    assert refused(tmp_path, text) == [said]


def test_all_mistakes_are_told_at_once_in_the_order_of_the_file(tmp_path: Path) -> None:
    lines = refused(tmp_path, "[[link]]\nto = 3\n[run]\nstpes = 1\nsteps = 0\n")
    assert [line.split(": ")[0] for line in lines] == ["f.toml", "f.toml:2", "f.toml:4", "f.toml:5"]
    assert lines[0] == "f.toml: 3 problems"


@pytest.mark.parametrize(
    ("text", "line", "quoted", "mend"),
    [
        ("[run]\nwait = 15 s\n", 2, "`wait = 15 s`", "quotes"),
        ("[run\nsteps = 1\n", 1, "`[run`", "bracket"),
        ("[run]\nsteps = 1\nsteps = 2\n", 3, "`steps = 2`", "delete one of the two"),
        ("[run]\nsteps = 1\n[run]\n", 3, "`[run]`", "delete one of the two"),
        ("[run]\nnames = [1,\n", 2, "`names = [1,`", "quotes"),
    ],
)
def test_syntax_errors_quote_the_line(tmp_path: Path, text: str, line: int, quoted: str, mend: str) -> None:
    """Case B3: a file with a bad second line."""
    [said] = refused(tmp_path, text)
    assert said.startswith(f"f.toml:{line}: not TOML: ")
    assert quoted in said and mend in said.rpartition(";")[2]


@pytest.mark.parametrize("text", ["", "\n\n", "# only a comment\n"])
def test_an_empty_file_is_refused(tmp_path: Path, text: str) -> None:
    """Case B3: an empty file must not mean a run with defaults."""
    assert refused(tmp_path, text) == ["f.toml: the file is empty; `shoal init` writes an example with every key"]
    refused(tmp_path, text, "run.steps=3")


def test_a_missing_file_is_one_clear_line(tmp_path: Path) -> None:
    """Case B3: a typo in the path."""
    (tmp_path / "cluster.toml").write_text("a = 1")
    with pytest.raises(UserError, match=r"clutser\.toml: no such file; did you mean '.*/cluster\.toml'\?") as caught:
        read_toml(tmp_path / "clutser.toml", File)
    assert caught.value.exit_status == 2 and "\n" not in str(caught.value)
    with pytest.raises(UserError, match="no such file; `shoal init` writes an example"):
        read_toml(tmp_path / "nowhere" / "x.toml", File)


def test_what_is_not_a_readable_file_is_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Case B3: a folder, bytes that are no text, a file without permission."""
    with pytest.raises(UserError, match="this is a folder"):
        read_toml(tmp_path, File)
    (tmp_path / "f.toml").write_bytes(b"title = '\xff'")
    with pytest.raises(UserError, match=r"not UTF-8 text \(byte 9\)"):
        read_toml(tmp_path / "f.toml", File)
    with pytest.raises(UserError, match="cannot be read: Not a directory"):
        read_toml(tmp_path / "f.toml" / "x.toml", File)

    def forbidden(*args: object, **kwargs: object) -> str:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_text", forbidden)
    with pytest.raises(UserError, match="cannot be read: Permission denied; check the path and its permissions"):
        read_toml(tmp_path / "f.toml", File)


def test_overrides_come_before_validation(tmp_path: Path) -> None:
    path = tmp_path / "f.toml"
    path.write_text("[run]\nsteps = -5\n")
    read = read_toml(
        path, File, overrides=["run.steps=7", "title=two words", "run.inner.depth = 3", "run.names=['a', \"b\"]"]
    )
    assert (read.run.steps, read.title, read.run.inner.depth, read.run.names) == (7, "two words", 3, ["a", "b"])


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("run.steps=0", "--set run.steps=0: run.steps: must be at least 1, got 0"),
        ("run.stpes=3", "--set run.stpes=3: run.stpes: unknown key in `stpes = 3`; did you mean 'steps'?"),
        ("run.kind=fsat", "--set run.kind=fsat: run.kind: no such choice, got 'fsat'; did you mean 'fast'?"),
        ("run={steps=0}", "--set run={steps=0}: run.steps: must be at least 1, got 0"),
        ("run.steps", "--set run.steps: not KEY=VALUE; write e.g. --set run.steps=20"),
        ("=3", "--set =3: not KEY=VALUE; write e.g. --set run.steps=20"),
        ("run.names=[1,", "--set run.names=[1,: not a TOML value: Invalid value; check its brackets"),
        ("run.steps=1\nx=2", "--set run.steps=1\nx=2: more than one value; write one --set for each key"),
        ("run.steps.x=3", "--set run.steps.x=3: run.steps: not a table, so no key in it can be set"),
    ],
)
def test_mistakes_in_overrides_name_the_flag(tmp_path: Path, override: str, said: str) -> None:
    assert "\n".join(refused(tmp_path, "[run]\nsteps = 1\n", override)) == said


def test_later_complaints_still_find_the_line() -> None:
    source = Source.parse("[run]\nsteps = 3\n", file="f.toml", overrides=["run.quiet=true"])
    assert str(source.error("run.steps", "odd", mend="even")) == "f.toml:2: run.steps: odd, got 3; even"
    assert str(source.error("run.kind", "odd")) == "f.toml:1: run.kind: odd"
    assert str(source.error("run.quiet", "odd")) == "--set run.quiet=true: run.quiet: odd, got True"
    assert str(source.error("run", "odd")) == "f.toml:1: run: odd"
    assert str(source.error("--runs", "odd")) == "f.toml: --runs: odd"
    assert str(Source().error("run.steps", "odd")) == "run.steps: odd"


def test_long_values_are_not_quoted() -> None:
    source = Source.parse(f"x = '{'y' * 100}'\n", file="f.toml")
    assert str(source.error("x", "odd")) == "f.toml:1: x: odd"


def test_several_problems_are_one_error() -> None:
    one, two = UserError("a", file="f"), UserError("b", file="f")
    assert several([one]) is one
    assert str(several([one, two], file="f")) == "f: 2 problems\n  f: a\n  f: b"
    check([])
    with pytest.raises(UserError, match="2 problems"):
        check(iter([one, two]))


def test_a_source_can_be_sent_to_another_process() -> None:
    source = Source.parse("a = 1\n", file="f.toml")
    assert pickle.loads(pickle.dumps(source)) == source
