"""A checkpoint is whole or absent, wherever the power fails."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from shoal.errors import UserError
from shoal.state.checkpoint import (
    MANIFEST,
    DamagedError,
    ShardInfo,
    commit,
    find,
    latest,
    prune,
    read_shard,
    step_folder,
    write_shard,
)

PEERS = ["a", "b/1", "c"]


def tensors_of(step: int, peer: str) -> dict[str, Tensor]:
    base = torch.arange(24, dtype=torch.float64) + step + ord(peer[0])
    return {
        "model/w": base.reshape(4, 6)[:, :3],  # a view of shared memory, as blocks hand out
        "model/v": base.reshape(4, 6)[:, 3:].t(),
        "model/half": torch.full((3,), step + 0.5, dtype=torch.bfloat16),
        "optimizer.step/w": torch.tensor(float(step)),
        "empty": torch.zeros(0, 3),
        "rng": torch.arange(5, dtype=torch.uint8),
    }


def save(folder: Path, step: int, peers: Sequence[str] = PEERS) -> Path:
    def write(peer: str) -> ShardInfo:
        scalars = {"x": 0.1 + step, "n": 3}
        return write_shard(folder, step, peer, tensors_of(step, peer), scalars, {"peer": peer, "at": [1, step]})

    infos = [write(peer) for peer in peers]
    return commit(folder, step, infos, {"job": "abc", "step": step, 7: "number"})  # type: ignore[dict-item]


def assert_whole(folder: Path, step: int, *, notes: Sequence[str] = ()) -> None:
    found = latest(folder, peers=PEERS)
    assert found is not None and found.step == step
    assert len(found.notes) == len(notes) and all(word in note for word, note in zip(notes, found.notes, strict=True))
    for peer in PEERS:
        shard = read_shard(found, peer)
        expected = tensors_of(step, peer)
        assert shard.tensors.keys() == expected.keys()
        for key, tensor in expected.items():
            assert shard.tensors[key].dtype == tensor.dtype and torch.equal(shard.tensors[key], tensor)
        assert shard.scalars == {"x": 0.1 + step, "n": 3}
        assert shard.meta == {"peer": peer, "at": [1, step]}


def test_what_is_written_is_read(tmp_path: Path) -> None:
    save(tmp_path, 5)
    assert_whole(tmp_path, 5)
    found = find(tmp_path, 5)
    assert found.meta == {"job": "abc", "step": 5, "7": "number"}
    assert found.shards["b/1"].file == "b%2F1.safetensors"


def test_nothing_is_found_where_nothing_is(tmp_path: Path) -> None:
    assert latest(tmp_path, peers=PEERS) is None
    assert latest(tmp_path / "absent", peers=PEERS) is None


def test_the_newest_is_by_number(tmp_path: Path) -> None:
    for step in (9, 10, 100_000_000, 99_999_999):
        save(tmp_path, step)
    assert_whole(tmp_path, 100_000_000)


@pytest.mark.parametrize("shards", range(len(PEERS) + 1))
def test_without_a_manifest_there_is_no_checkpoint(tmp_path: Path, shards: int) -> None:
    """Power fails after some peers have written their shard, or all, but the leader has not committed."""
    for peer in PEERS[:shards]:
        write_shard(tmp_path, 6, peer, tensors_of(6, peer), {}, {})
    assert latest(tmp_path, peers=PEERS) is None
    save(tmp_path, 5)
    assert_whole(tmp_path, 5, notes=["unfinished"] if shards else [])


class PowerCut(Exception):
    pass


def test_power_may_fail_at_any_system_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut before the n-th flush or rename: the older checkpoint is found until the new manifest has its name."""
    save(tmp_path, 5)
    real_fsync, real_replace = os.fsync, Path.replace
    stages: list[int] = []

    class Fuse:
        def __init__(self, calls: int) -> None:
            self.left = calls

        def burn(self) -> None:
            if self.left == 0:
                raise PowerCut
            self.left -= 1

    for n in range(100):
        fuse = Fuse(n)
        monkeypatch.setattr(os, "fsync", lambda descriptor, fuse=fuse: (fuse.burn(), real_fsync(descriptor)))
        monkeypatch.setattr(Path, "replace", lambda self, to, fuse=fuse: (fuse.burn(), real_replace(self, to)))
        try:
            save(tmp_path, 6)
        except PowerCut:
            monkeypatch.undo()
            found = latest(tmp_path, peers=PEERS)
            assert found is not None
            stages.append(found.step)
            assert_whole(tmp_path, found.step, notes=["unfinished"] if found.step == 5 else [])
        else:
            break
    monkeypatch.undo()
    assert len(stages) > 10 and stages == sorted(stages)
    assert stages.count(6) == 1, "only after the manifest got its name, before its folder was flushed"
    assert_whole(tmp_path, 6)


@pytest.mark.parametrize("file", [MANIFEST, "a.safetensors", "b%2F1.safetensors"])
def test_a_file_cut_short_anywhere_is_noticed(tmp_path: Path, file: str) -> None:
    save(tmp_path, 5)
    path = save(tmp_path, 6) / file
    data = path.read_bytes()
    for length in sorted({0, 1, 7, 8, 9, len(data) // 3, len(data) // 2, len(data) - 1}):
        path.write_bytes(data[:length])
        assert_whole(tmp_path, 5, notes=["manifest" if file == MANIFEST else file])
    path.write_bytes(data)
    assert_whole(tmp_path, 6)


@pytest.mark.parametrize("file", [MANIFEST, "c.safetensors"])
def test_a_flipped_bit_is_noticed(tmp_path: Path, file: str) -> None:
    save(tmp_path, 5)
    path = save(tmp_path, 6) / file
    data = path.read_bytes()
    for at in range(0, len(data), max(1, len(data) // 40)):
        flipped = bytearray(data)
        flipped[at] ^= 4
        path.write_bytes(flipped)
        if file == MANIFEST and _same_json(flipped, data):
            continue  # white space
        assert_whole(tmp_path, 5, notes=[file.removesuffix(".json")])


def _same_json(a: bytes | bytearray, b: bytes) -> bool:
    try:
        return json.loads(a) == json.loads(b)
    except ValueError:
        return False


def test_a_missing_shard_is_noticed(tmp_path: Path) -> None:
    save(tmp_path, 5)
    (save(tmp_path, 6) / "a.safetensors").unlink()
    assert_whole(tmp_path, 5, notes=["cannot be read"])


def test_a_shard_damaged_after_the_search_is_refused(tmp_path: Path) -> None:
    path = save(tmp_path, 5) / "a.safetensors"
    found = latest(tmp_path, peers=PEERS)
    assert found is not None
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with pytest.raises(DamagedError, match="another digest"):
        read_shard(found, "a")


def test_if_all_are_damaged_it_says_why(tmp_path: Path) -> None:
    """Starting from scratch without a word would lose the run."""
    for step in (5, 6):
        (save(tmp_path, step) / "a.safetensors").write_bytes(b"")
    with pytest.raises(UserError, match=r"no checkpoint is whole: step-00000006: shard a.*step-00000005: shard a"):
        latest(tmp_path, peers=PEERS)


def test_a_checkpoint_of_other_peers_is_refused(tmp_path: Path) -> None:
    save(tmp_path, 5)
    with pytest.raises(UserError, match="is of a, b/1, c; this run has a, d"):
        latest(tmp_path, peers=["d", "a"])
    with pytest.raises(UserError, match="no shard of d"):
        read_shard(find(tmp_path, 5), "d")


def test_saving_a_step_again_withdraws_the_old_checkpoint_first(tmp_path: Path) -> None:
    save(tmp_path, 4)
    save(tmp_path, 5)
    write_shard(tmp_path, 5, "a", tensors_of(50, "a"), {}, {})
    assert_whole(tmp_path, 4, notes=["unfinished"])
    save(tmp_path, 5)
    assert_whole(tmp_path, 5)


def test_another_format_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.state.checkpoint.FORMAT", 2)
    save(tmp_path, 5)
    monkeypatch.undo()
    with pytest.raises(UserError, match="format 2, this version reads 1"):
        latest(tmp_path, peers=PEERS)


# ----------------------------------------------------------------------------------------------------- retention


def steps_in(folder: Path) -> list[int]:
    return [step for step in range(30) if step_folder(folder, step).exists()]


def test_the_newest_are_kept_by_number(tmp_path: Path) -> None:
    """Case G4: keep 2, steps 8..12."""
    for step in range(8, 13):
        save(tmp_path, step)
    assert prune(tmp_path, 2) == [8, 9, 10]
    assert steps_in(tmp_path) == [11, 12]
    assert_whole(tmp_path, 12)


def test_foreign_files_stay(tmp_path: Path) -> None:
    """Case G4."""
    for step in (1, 2, 3):
        save(tmp_path, step)
    foreign = [
        tmp_path / "notes.txt",
        tmp_path / "step-1",
        tmp_path / "step-0000000x",
        tmp_path / "step-000000001",
        step_folder(tmp_path, 1) / "notes.txt",
        step_folder(tmp_path, 1) / "mine.safetensors",
    ]
    for path in foreign:
        path.write_text("mine")
    assert prune(tmp_path, 1) == [1, 2]
    assert all(path.read_text() == "mine" for path in foreign)
    assert [path.name for path in sorted(step_folder(tmp_path, 1).iterdir())] == ["mine.safetensors", "notes.txt"]
    assert steps_in(tmp_path) == [1, 3]


@pytest.mark.parametrize("keep", [0, 1, 2])
@pytest.mark.parametrize("harm", ["cut", "flip", "no manifest"])
def test_the_newest_whole_one_is_never_deleted(tmp_path: Path, keep: int, harm: str) -> None:
    for step in range(1, 6):
        save(tmp_path, step)
    for step in (4, 5):
        path = step_folder(tmp_path, step) / (MANIFEST if harm == "no manifest" else "c.safetensors")
        data = path.read_bytes()
        if harm == "no manifest":
            path.unlink()
        else:
            path.write_bytes(data[:-1] if harm == "cut" else data[:-1] + bytes([data[-1] ^ 1]))
    prune(tmp_path, keep)
    assert 3 in steps_in(tmp_path) and 1 not in steps_in(tmp_path)
    assert_whole(tmp_path, 3, notes=["", ""])


def test_unfinished_ones_are_cleared_away_when_a_newer_one_is_whole(tmp_path: Path) -> None:
    write_shard(tmp_path, 1, "a", tensors_of(1, "a"), {}, {})
    (step_folder(tmp_path, 1) / ".c.safetensors.part").write_bytes(b"half")
    save(tmp_path, 2)
    write_shard(tmp_path, 3, "a", tensors_of(3, "a"), {}, {})
    assert prune(tmp_path, 5) == [1]
    assert steps_in(tmp_path) == [2, 3]


def test_nothing_is_deleted_while_nothing_is_whole(tmp_path: Path) -> None:
    for step in (1, 2):
        (save(tmp_path, step) / "a.safetensors").unlink()
    assert prune(tmp_path, 1) == []


def test_shards_hold_no_code(tmp_path: Path) -> None:
    """Never pickle: a shard is a JSON header and numbers."""
    path = save(tmp_path, 5) / "a.safetensors"
    data = path.read_bytes()
    header: dict[str, Any] = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    assert header["__metadata__"]["peer"] == "a" and header["__metadata__"]["step"] == "5"
