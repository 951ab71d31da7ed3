from __future__ import annotations

import pytest

from shoal.errors import UserError
from shoal.launch.torchrun import Place, place


def test_without_rank_nobody_else_was_started() -> None:
    assert place({}) is None and place({"RANK": "0"}) is None


def test_place_as_torchrun_and_slurm_say_it() -> None:
    assert place({"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}) == Place(rank=5, size=8, local=1)
    assert place({"RANK": "5", "WORLD_SIZE": "8", "SLURM_LOCALID": "3"}) == Place(rank=5, size=8, local=3)
    assert place({"RANK": "0", "WORLD_SIZE": "2"}) == Place(rank=0, size=2, local=0)


@pytest.mark.parametrize(
    ("environment", "key"),
    [
        ({"RANK": "x", "WORLD_SIZE": "2"}, "RANK"),
        ({"RANK": "0", "WORLD_SIZE": ""}, "WORLD_SIZE"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK"),
    ],
)
def test_numbers_that_cannot_be_are_refused(environment: dict[str, str], key: str) -> None:
    with pytest.raises(UserError, match=key):
        place(environment)
