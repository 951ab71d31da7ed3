from __future__ import annotations

from pathlib import Path

import pytest

from shoal.errors import UserError
from shoal.lab import Change, load_script

HOSTS = ("oslo", "bern")


def script(folder: Path, text: str) -> Path:
    path = folder / "outage.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_changes_come_in_the_order_of_their_times(tmp_path: Path) -> None:
    text = """
[[event]]
at = "20 s"
do = "heal"
host = "bern"
[[event]]
at = "500 ms"
do = "set"
from = "oslo"
to = "bern"
bandwidth = "8 Mbps"
latency = "50 ms"
loss = "1 %"
one_way = true
"""
    assert load_script(script(tmp_path, text), HOSTS) == [
        Change(do="set", at=0.5, from_="oslo", to="bern", one_way=True, bandwidth=1e6, latency=0.05, loss=0.01),
        Change(do="heal", at=20.0, host="bern"),
    ]


@pytest.mark.parametrize(
    ("event", "problem"),
    [
        ('do = "cut"\nhost = "brn"', "event[0].host: no such host, got 'brn'; did you mean"),
        ('do = "cut"', "one place too many or too few"),
        ('do = "cut"\nfrom = "oslo"', "a link has two ends"),
        ('do = "pause"\nfrom = "oslo"\nto = "bern"', "pause is about a host"),
        ('do = "set"\nfrom = "oslo"\nto = "bern"', "nothing to set"),
        ('do = "cut"\nhost = "bern"\nloss = "1 %"', "cut has no figures"),
        ('do = "explode"\nhost = "bern"', "event[0].do"),
        ('do = "cut"\nhost = "bern"\nlatncy = "1 s"', "latency"),
    ],
)
def test_mistakes_are_pointed_at(tmp_path: Path, event: str, problem: str) -> None:
    with pytest.raises(UserError) as caught:
        load_script(script(tmp_path, f'[[event]]\nat = "1 s"\n{event}\n'), HOSTS)
    assert problem in str(caught.value) and "outage.toml" in str(caught.value)


def test_a_bare_number_is_no_time(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="needs a unit"):
        load_script(script(tmp_path, '[[event]]\nat = 5\ndo = "cut"\nhost = "bern"\n'), HOSTS)
