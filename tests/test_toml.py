"""Positions of keys, and writing: against tomllib as the judge."""

from __future__ import annotations

import datetime
import math
import tomllib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.toml import dotted, dumps, inline, is_table, key_path, positions

TRICKY = '''# a comment
a = 1 # [not] = "a table"
"b c".d = [1, [2,
  3], { x = 1, y = "]}", z.w = 2 }] # ]
long = """
quotes "" and \\""" [x]
k = 3
""""
literal = \'\'\'
'' [y] = 1\'\'\'

[ t ]
when = 1979-05-27 07:32:00 # x
[t.u."v.w"]
y = {a = 1}
[[h]]
n = 1
[[h]]
n = 2
[h.sub]
q = "#"
[[h.in]]
r = 1
[[h.in]]
r.s = 2
[t.x]
z = 'a\\'
'''

LINES = {
    ("a",): 2,
    ("b c",): 3,
    ("b c", "d"): 3,
    ("b c", "d", 0): 3,
    ("b c", "d", 1): 3,
    ("b c", "d", 1, 0): 3,
    ("b c", "d", 1, 1): 4,
    ("b c", "d", 2): 4,
    ("b c", "d", 2, "x"): 4,
    ("b c", "d", 2, "y"): 4,
    ("b c", "d", 2, "z"): 4,
    ("b c", "d", 2, "z", "w"): 4,
    ("long",): 5,
    ("literal",): 9,
    ("t",): 12,
    ("t", "when"): 13,
    ("t", "u"): 14,
    ("t", "u", "v.w"): 14,
    ("t", "u", "v.w", "y"): 15,
    ("t", "u", "v.w", "y", "a"): 15,
    ("h",): 16,
    ("h", 0): 16,
    ("h", 0, "n"): 17,
    ("h", 1): 18,
    ("h", 1, "n"): 19,
    ("h", 1, "sub"): 20,
    ("h", 1, "sub", "q"): 21,
    ("h", 1, "in"): 22,
    ("h", 1, "in", 0): 22,
    ("h", 1, "in", 0, "r"): 23,
    ("h", 1, "in", 1): 24,
    ("h", 1, "in", 1, "r"): 25,
    ("h", 1, "in", 1, "r", "s"): 25,
    ("t", "x"): 26,
    ("t", "x", "z"): 27,
}


def test_positions_of_every_kind_of_key() -> None:
    tomllib.loads(TRICKY)
    assert positions(TRICKY) == LINES


def paths(value: Any, path: tuple[str | int, ...] = ()) -> set[tuple[str | int, ...]]:
    """Every path in `value`, by plain recursion."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    found = {path} if path else set()
    return found.union(*(paths(item, (*path, key)) for key, item in items))


text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
scalars = st.one_of(
    st.integers(-(2**63), 2**63 - 1),
    st.booleans(),
    st.floats(allow_nan=False),
    text,
    st.dates(),
    st.datetimes(min_value=datetime.datetime(1000, 1, 1)),
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3), max_leaves=12
)
tables = st.dictionaries(text, values, max_size=5)


@settings(deadline=None)
@given(tables)
def test_what_is_written_reads_back_equal(table: dict[str, Any]) -> None:
    assert tomllib.loads(dumps(table)) == table


@settings(deadline=None)
@given(tables)
def test_every_path_of_a_file_has_a_line(table: dict[str, Any]) -> None:
    written = dumps(table)
    found = positions(written)
    assert set(found) == paths(tomllib.loads(written))
    assert all(1 <= line <= written.count("\n") for line in found.values())


@settings(deadline=None)
@given(st.lists(text, min_size=1, max_size=4))
def test_dotted_keys_read_back(parts: list[str]) -> None:
    assert key_path(dotted(tuple(parts))) == tuple(parts)


@pytest.mark.parametrize("wrong", ["", " ", "a.", ".a", "a b", "a[0]", "a = 1"])
def test_what_is_no_dotted_key(wrong: str) -> None:
    with pytest.raises(ValueError):
        key_path(wrong)


def test_not_a_number_is_written() -> None:
    assert math.isnan(tomllib.loads(dumps({"x": math.nan}))["x"])


def test_what_toml_cannot_say_is_refused() -> None:
    with pytest.raises(TypeError, match="TOML cannot say None"):
        dumps({"x": None})
    with pytest.raises(TypeError):
        inline({1, 2})


def test_indices_stand_in_brackets() -> None:
    assert dotted(("host", 0, "up")) == "host[0].up"


def test_tables_stand_under_headers() -> None:
    assert dumps({"a": {"b": [{"c": 1}, {"c": 2}]}, "d": 1}) == "d = 1\n\n[a]\n\n[[a.b]]\nc = 1\n\n[[a.b]]\nc = 2\n"
    assert not is_table([]) and not is_table([{}, 1]) and is_table([{}])
