"""The job file: loading, checks across keys, writing it back, and its documentation."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal import job, schema
from shoal.errors import UserError
from shoal.job import Batch, Data, Job, Mix, Optim, Run, Simulate

PAGE = Path(__file__).parent.parent.parent / "docs" / "job.md"


def write(folder: Path, text: str) -> Path:
    path = folder / "job.toml"
    path.write_text(text, encoding="utf-8")
    return path


def refused(folder: Path, text: str, *overrides: str) -> str:
    with pytest.raises(UserError) as caught:
        job.load(write(folder, text), overrides)
    return str(caught.value).replace(f"{folder}/", "")


def test_every_key_is_optional(tmp_path: Path) -> None:
    loaded = job.load(write(tmp_path, 'name = "x"\n'))
    assert loaded == Job(name="x", folder=str(tmp_path))


def test_quantities_become_numbers(tmp_path: Path) -> None:
    text = '[mixing]\nbucket = "1 MiB"\n[run]\npeer_deadline = "2 min"\n[data]\nheld_out = "10 %"\n'
    loaded = job.load(write(tmp_path, text))
    assert (loaded.mixing.bucket, loaded.run.peer_deadline, loaded.data.held_out) == (2**20, 120.0, 0.1)


def test_code_makes_jobs_with_plain_numbers() -> None:
    made = Job(run=Run(peer_deadline=2.0), mixing=Mix(bucket=1024))
    assert (made.run.peer_deadline, made.mixing.bucket) == (2.0, 1024)


def test_keys_of_strategies_stay_raw(tmp_path: Path) -> None:
    loaded = job.load(write(tmp_path, '[mixing]\nname = "x"\nevery = "3 s"\n[optimizer]\nbetas = [0.9, 0.95]\n'))
    assert loaded.mixing.extra == {"every": "3 s"} and loaded.optimizer.extra == {"betas": [0.9, 0.95]}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "[batch]\nsize = 4\nmicro = 8",
            "job.toml:3: batch.micro: a micro-batch cannot hold more samples than a step (4), got 8; write 4 or less",
        ),
        ('[data]\nsource = "files"', 'job.toml:1: data.files: no files; write e.g. files = ["corpus/*.txt"]'),
        (
            '[data]\nfiles = ["a"]',
            'job.toml:2: data.files: only used with source = "files", but source is "stdlib", got [\'a\']; '
            'write source = "files"',
        ),
        ('[data]\nsource = "stdlb"', "job.toml:2: data.source: no such source, got 'stdlb'; did you mean 'stdlib'?"),
        ("[data]\nheld_out = 1", "job.toml:2: data.held_out: must be less than 1, got 1"),
        ("[data]\nheld_out = 5", 'job.toml:2: data.held_out: not a share, got 5; write "5 %" or 0.05'),
        (
            "[run]\npeer_deadline = 15",
            'job.toml:2: run.peer_deadline: a time needs a unit, got 15; write "15 ms", "15 s" or "15 min"',
        ),
        ("[optimizer]\nlr = inf", "job.toml:2: optimizer.lr: must be finite, got inf; write e.g. lr = 0.001"),
        (
            'name = "a/b"',
            "job.toml:1: name: not of the right form, got 'a/b'; "
            'write e.g. name = "job" '
            "(Names the folder of the runs: letters, digits, dots, dashes and underscores.)",
        ),
        ("[run]\nlr = 3", "job.toml:2: run.lr: unknown key in `lr = 3`; it belongs in [optimizer]"),
        ("[optimiser]\nlr = 3.0", "job.toml:1: optimiser: unknown table; did you mean 'optimizer'?"),
    ],
)
def test_mistakes(tmp_path: Path, text: str, said: str) -> None:
    """Cases B1, B2."""
    assert refused(tmp_path, text) == said


def test_a_flag_that_contradicts_the_file_is_named(tmp_path: Path) -> None:
    said = refused(tmp_path, "[batch]\nsize = 8\nmicro = 4\n", "batch.micro=20")
    assert said.startswith("--set batch.micro=20: batch.micro: a micro-batch cannot hold more samples")


def test_a_small_batch_needs_no_micro_batch_size(tmp_path: Path) -> None:
    assert Batch(size=4).micro == 4 and Batch(size=100).micro == 8
    assert job.load(write(tmp_path, "[batch]\nsize = 4\n")).batch.micro == 4


def test_a_run_may_end_during_its_warm_up(tmp_path: Path) -> None:
    """``shoal train JOB --steps 20`` tries a job whose warm-up is longer than that."""
    loaded = job.load(write(tmp_path, "[schedule]\nwarmup = 50\n"), ["run.steps=20"])
    assert (loaded.schedule.warmup, loaded.run.steps) == (50, 20)


def test_paths_start_from_the_folder_of_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sub").mkdir()
    write(tmp_path / "sub", 'folder = "../other"\n')
    monkeypatch.chdir(tmp_path)
    assert job.load("sub/job.toml").base == tmp_path.resolve() / "other"
    write(tmp_path / "sub", 'name = "x"\n')
    assert job.load("sub/job.toml").base == tmp_path.resolve() / "sub"
    assert Job().base == Path(os.getcwd())


def test_the_straggler_is_checked_against_the_cluster(tmp_path: Path) -> None:
    loaded = job.load(write(tmp_path, '[simulate]\nstraggler = "worker-7"\n'))
    loaded.check_peers(["worker-0", "worker-7"])
    with pytest.raises(
        UserError, match=r"job.toml:2: simulate.straggler: no such device, got 'worker-7'; did you mean"
    ):
        loaded.check_peers(["worker-0", "worker-1"])
    Job().check_peers([])


def test_later_complaints_name_file_and_line_also_of_a_changed_copy(tmp_path: Path) -> None:
    loaded = job.load(write(tmp_path, "[batch]\nsize = 8\n"), ["run.steps=7"])
    copy = loaded.model_copy(update={"run": loaded.run.model_copy(update={"threads": 2})})
    for made in (copy, pickle.loads(pickle.dumps(copy))):
        text = str(made.error("batch.size", "too small", mend="write 16"))
        assert text == f"{tmp_path}/job.toml:2: batch.size: too small, got 8; write 16"
        assert str(made.error("run.steps", "odd")) == "--set run.steps=7: run.steps: odd, got 7"
    assert str(Job().error("batch.size", "odd")) == "batch.size: odd, got 32"


def test_equality_is_of_content_not_of_origin(tmp_path: Path) -> None:
    one = job.load(write(tmp_path, "[run]\nsteps = 5\n"))
    two = job.load(write(tmp_path, "\n\n[run]\nsteps = 4\n"), ["run.steps=5"])
    assert one == two and one != job.load(tmp_path / "job.toml") and one != "job"


plain = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=6)
values: Any = st.recursive(
    st.one_of(st.integers(-(2**40), 2**40), st.booleans(), st.floats(allow_nan=False), plain),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(plain, inner, max_size=2),
    max_leaves=4,
)
positive = st.floats(min_value=1e-9, max_value=1e9)


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    size = draw(st.integers(1, 1000))
    own = {"source": "files", "files": draw(st.lists(plain, min_size=1))}
    data = own if draw(st.booleans()) else {"args": draw(st.dictionaries(plain, values, max_size=2))}
    optimizer = {"lr": draw(positive), "clip": draw(st.none() | positive), "betas": draw(values)}
    mixing = {"topology": draw(st.none() | plain), "bucket": draw(st.integers(1, 2**50)), "own": draw(values)}
    threads = draw(st.none() | st.integers(1, 64))
    return Job(
        name=draw(st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,8}", fullmatch=True)),
        cluster=draw(st.none() | plain),
        data=Data.model_validate({**data, "held_out": draw(st.floats(0, 0.99))}),
        batch=Batch(size=size, micro=draw(st.integers(1, size))),
        optimizer=Optim.model_validate(optimizer),
        mixing=Mix.model_validate(mixing),
        run=Run(steps=draw(st.integers(1, 10**6)), threads=threads, peer_deadline=draw(positive)),
        simulate=Simulate(straggler=draw(st.none() | plain), spread=draw(st.floats(0, 1))),
    )


@settings(deadline=None)
@given(jobs())
def test_a_written_job_loads_back_equal(tmp_path_factory: pytest.TempPathFactory, made: Job) -> None:
    """A run keeps its own effective job, which must be the same job in another folder."""
    folder = tmp_path_factory.getbasetemp() / "elsewhere"
    folder.mkdir(exist_ok=True)
    loaded = job.load(write(folder, job.dump(made)))
    assert loaded == made
    assert job.dump(loaded) == job.dump(made)


def test_a_written_job_carries_units_and_overrides(tmp_path: Path) -> None:
    text = job.dump(job.load(write(tmp_path, "[run]\nsteps = 5\n"), ["run.peer_deadline=20 s", "model.args.layers=4"]))
    assert 'peer_deadline = "20 s"' in text and 'bucket = "4 MiB"' in text and "layers = 4" in text


def test_the_template_loads_and_says_the_defaults(tmp_path: Path) -> None:
    assert job.load(write(tmp_path, job.template())) == Job(folder=str(tmp_path))


def test_every_line_of_the_template_is_a_key_that_can_be_used(tmp_path: Path) -> None:
    """Uncommenting an example must give a job, too."""
    lines = job.template().splitlines()
    for n, line in enumerate(lines):
        if line.startswith("# ") and line[2:].split(" = ")[0].isidentifier() and " = " in line:
            text = "\n".join([*lines[:n], line[2:], *lines[n + 1 :]])
            job.load(
                write(tmp_path, text.replace('source = "stdlib"', 'source = "files"') if "files" in line else text)
            )


def test_the_template_explains_every_key() -> None:
    lines = job.template().splitlines()
    for table in schema.tables(Job):
        assert not table.header or table.header in lines
        for name, known in table.keys.items():
            assert known.description, f"{table.header} {name} has no description"
            assert any(line.removeprefix("# ").startswith(f"{name} = ") for line in lines)


@pytest.mark.parametrize("table", list(schema.tables(Job)), ids=lambda table: table.header or "top")
def test_the_page_has_every_key_with_its_default(table: schema.Table) -> None:
    page = PAGE.read_text(encoding="utf-8")
    heading = f"### `{table.header}`" if table.path else "### At the top of the job file"
    section = page.partition(f"{heading}\n")[2].partition("\n#")[0]
    rows = {row.split("|")[1].strip(): row.split("|") for row in section.splitlines() if row.startswith("| `")}
    assert list(rows) == [f"`{name}`" for name in table.keys]
    for name, known in table.keys.items():
        if not known.examples:
            assert rows[f"`{name}`"][3].strip() == f"`{schema.default(known)}`"
