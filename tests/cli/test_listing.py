from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from shoal.registry import SEAMS, names

Shoal = Callable[..., Any]


def test_list_has_every_strategy_of_every_seam_with_a_line(shoal: Shoal) -> None:
    out = shoal("list").out
    for seam, question in SEAMS.items():
        assert f"{seam}: {question}" in out
        for name in names(seam):
            assert any(line.split(maxsplit=1)[0] == name and len(line.split()) > 1 for line in out.splitlines())


def test_list_of_one_seam(shoal: Shoal) -> None:
    lines = shoal("list", "topology").out.splitlines()
    assert lines[0].startswith("topology: ") and [line.split()[0] for line in lines[1:]] == names("topology")


def test_list_as_json(shoal: Shoal) -> None:
    rows = [json.loads(line) for line in shoal("list", "--json").out.splitlines()]
    assert {(row["seam"], row["name"]) for row in rows} == {(seam, name) for seam in SEAMS for name in names(seam)}
    assert all(row["summary"] for row in rows)


def test_unknown_seam_is_refused_with_those_there_are(shoal: Shoal) -> None:
    ran = shoal("list", "mixin")
    assert ran.status == 2 and "mixing" in ran.err
