"""Checkpoints on disk: whole or absent, whatever the power does.

    checkpoints/step-00000100/
      PEER.safetensors      one shard per peer: tensors, and scalars in the file's metadata
      manifest.json         written last: what the checkpoint consists of, with sizes and digests

Every peer writes its own shard aside, flushes it to the disk and renames it (`write_shard`). When all of them have
told the leader that theirs is on disk, the leader writes the manifest in the same way (`commit`). A folder without a
manifest is no checkpoint; one whose files differ from its manifest is damaged, and `latest` falls back to the one
before. The folder is shared by all peers. Nothing is ever unpickled.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any
from urllib.parse import quote

import safetensors.torch
from torch import Tensor

from shoal.errors import UserError
from shoal.world import Peer

FORMAT = 1
MANIFEST = "manifest.json"
_STEP = re.compile(r"step-(\d{8,})")

Scalar = int | float


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardInfo:
    """One peer's file, as the peer found it on disk. It travels to the leader as the peer's confirmation."""

    peer: Peer
    file: str
    nbytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A committed checkpoint. `notes` says why newer ones were passed over; `meta` is what `commit` was given."""

    path: Path
    step: int
    shards: Mapping[Peer, ShardInfo]
    meta: Mapping[str, Any]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """What one peer had written."""

    tensors: dict[str, Tensor]
    scalars: dict[str, Scalar]
    meta: Mapping[str, Any]


class DamagedError(UserError):
    """A committed checkpoint whose files are not what its manifest says."""


def step_folder(folder: Path, step: int) -> Path:
    """Where the checkpoint of `step` lives under `folder`."""
    return folder / f"step-{step:08d}"


def write_shard(
    folder: Path,
    step: int,
    peer: Peer,
    tensors: Mapping[str, Tensor],
    scalars: Mapping[str, Scalar],
    meta: Mapping[str, Any],
) -> ShardInfo:
    """Write one peer's shard; return when it is on the disk. An older checkpoint of the same step is withdrawn first.

    Args:
        folder: the run's checkpoint folder.
        meta: anything JSON can hold; read back by `read_shard`.

    Raises:
        OSError: the disk is full or the folder cannot be written.
    """
    path = step_folder(folder, step)
    path.mkdir(parents=True, exist_ok=True)
    _sync_folder(folder)
    (path / MANIFEST).unlink(missing_ok=True)
    name = f"{quote(peer, safe='')}.safetensors"
    texts = {"scalars": json.dumps(dict(scalars)), "meta": json.dumps(dict(meta)), "step": str(step), "peer": peer}
    aside = path / f".{name}.part"
    safetensors.torch.save_file({key: _own(t) for key, t in tensors.items()}, aside, metadata=texts)
    info = ShardInfo(peer=peer, file=name, nbytes=aside.stat().st_size, sha256=_digest(aside))
    _publish(aside, path / name)
    return info


def commit(folder: Path, step: int, infos: Sequence[ShardInfo], meta: Mapping[str, Any]) -> Path:
    """Make the checkpoint of `step` exist: write its manifest. Called by the leader when every peer has confirmed.

    Returns:
        The checkpoint's own folder.
    """
    path = step_folder(folder, step)
    shards = {info.peer: asdict(info) for info in sorted(infos, key=lambda info: info.peer)}
    body = json.loads(json.dumps({"format": FORMAT, "step": step, "shards": shards, "meta": dict(meta)}))
    aside = path / f".{MANIFEST}.part"
    aside.write_text(json.dumps({"sha256": _body_digest(body), **body}, indent=1), encoding="utf-8")
    _publish(aside, path / MANIFEST)
    return path


def latest(folder: Path, *, peers: Sequence[Peer]) -> Found | None:
    """The newest whole checkpoint of `folder`: every shard is there with the size and digest of the manifest.

    Unfinished checkpoints count as absent, damaged ones are passed over with a note.

    Returns:
        None if no checkpoint was ever committed.

    Raises:
        UserError: checkpoints were committed but all are damaged, or the newest whole one is of other peers.
    """
    notes: list[str] = []
    committed = False
    for step in sorted(_steps(folder), reverse=True):
        path = step_folder(folder, step)
        if not (path / MANIFEST).is_file():
            notes.append(f"{path.name}: unfinished, it has no manifest")
            continue
        committed = True
        try:
            found = find(folder, step)
            _verify_shards(found)
        except DamagedError as error:
            notes.append(f"{path.name}: {error.problem}")
            continue
        if sorted(found.shards) != sorted(peers):
            theirs, ours = ", ".join(sorted(found.shards)), ", ".join(sorted(peers))
            raise UserError(
                f"checkpoint {path.name} is of {theirs}; this run has {ours}",
                file=str(path),
                mend="resume on the same devices",
            )
        return Found(path=path, step=step, shards=found.shards, meta=found.meta, notes=tuple(notes))
    if committed:
        raise DamagedError("no checkpoint is whole: " + "; ".join(notes), file=str(folder), mend="start a new run")
    return None


def whole(folder: Path, *, peers: Sequence[Peer], mine: Peer) -> list[Found]:
    """All committed checkpoints of these peers whose shard of `mine` is undamaged, oldest first.

    Where peers do not share a disk, each vouches for its own shard; they resume from the newest step that all offer.
    """
    out: list[Found] = []
    for step in sorted(_steps(folder)):
        try:
            found = find(folder, step)
            _verify_shards(found, only=mine)
        except DamagedError:
            continue
        if sorted(found.shards) == sorted(peers):
            out.append(found)
    return out


def find(folder: Path, step: int) -> Found:
    """The committed checkpoint of `step`; its manifest is verified, its shards are not yet read.

    Raises:
        DamagedError: the manifest is missing, cut short or altered.
    """
    path = step_folder(folder, step)
    file = path / MANIFEST
    try:
        raw = json.loads(file.read_bytes())
        sha256 = raw.pop("sha256")
        if sha256 != _body_digest(raw) or raw["step"] != step:
            raise DamagedError("the manifest was altered", file=str(file))
        if raw["format"] != FORMAT:
            raise UserError(f"checkpoint format {raw['format']}, this version reads {FORMAT}", file=str(file))
        shards = {peer: ShardInfo(**info) for peer, info in raw["shards"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedError(f"the manifest cannot be read ({type(error).__name__})", file=str(file)) from error
    return Found(path=path, step=step, shards=shards, meta=raw["meta"])


def read_shard(found: Found, peer: Peer) -> Shard:
    """Read `peer`'s shard, verified while it is read. Tensors are on the CPU.

    Raises:
        UserError: `peer` has no shard here, or it is damaged.
    """
    if peer not in found.shards:
        raise UserError(f"no shard of {peer}", file=str(found.path), mend="resume on the same devices")
    info = found.shards[peer]
    with _open_shard(found, info) as stream:
        data = stream.read()
    _check(found, info, len(data), hashlib.sha256(data).hexdigest())
    texts = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])[
        "__metadata__"
    ]  # the file begins with a header
    return Shard(
        tensors=safetensors.torch.load(data), scalars=json.loads(texts["scalars"]), meta=json.loads(texts["meta"])
    )


def prune(folder: Path, keep: int) -> list[int]:
    """Delete all but the newest `keep` committed checkpoints, and unfinished ones older than the newest whole one.

    Steps are ordered as numbers. The newest whole checkpoint stays whatever `keep` says; files that are not ours stay.

    Returns:
        The steps deleted, oldest first.
    """
    steps = sorted(_steps(folder), reverse=True)
    whole = next((step for step in steps if _is_whole(folder, step)), None)
    if whole is None:
        return []
    committed = [step for step in steps if (step_folder(folder, step) / MANIFEST).is_file()]
    stay = {whole, *committed[: max(keep, 1)], *(step for step in steps if step > whole)}
    gone = sorted(set(steps) - stay)
    for step in gone:
        _remove(folder, step)
    return gone


def _own(t: Tensor) -> Tensor:
    """As a file wants it: contiguous, and no step count shared by several parameters."""
    t = t.detach().contiguous()
    return t if t.ndim else t.clone()


def _is_whole(folder: Path, step: int) -> bool:
    try:
        _verify_shards(find(folder, step))
    except UserError:
        return False
    return True


def _steps(folder: Path) -> Iterator[int]:
    if folder.is_dir():
        for path in folder.iterdir():
            match = _STEP.fullmatch(path.name)
            if match and path.is_dir() and path.name == step_folder(folder, int(match[1])).name:
                yield int(match[1])


def _remove(folder: Path, step: int) -> None:
    """Delete a checkpoint: its manifest first, so that what is left of an interrupted deletion is no checkpoint."""
    path = step_folder(folder, step)
    try:
        ours = {info.file for info in find(folder, step).shards.values()}
    except UserError:
        ours = {file.name for file in path.glob("*.safetensors")}
    (path / MANIFEST).unlink(missing_ok=True)
    for file in path.iterdir():
        if file.name in ours or file.name.endswith((".safetensors.part", f"{MANIFEST}.part")):
            file.unlink()
    if not any(path.iterdir()):
        path.rmdir()


def _verify_shards(found: Found, *, only: Peer | None = None) -> None:
    for info in found.shards.values():
        if only is not None and info.peer != only:
            continue
        with _open_shard(found, info) as stream:
            sha256 = hashlib.file_digest(stream, "sha256").hexdigest()
            _check(found, info, stream.tell(), sha256)


def _open_shard(found: Found, info: ShardInfo) -> BufferedReader:
    file = found.path / info.file
    try:
        return file.open("rb")
    except OSError as error:
        raise DamagedError(f"shard {info.file} cannot be read ({type(error).__name__})", file=str(file)) from error


def _check(found: Found, info: ShardInfo, nbytes: int, sha256: str) -> None:
    if nbytes != info.nbytes:
        why = f"has {nbytes} bytes instead of {info.nbytes}"
    elif sha256 != info.sha256:
        why = "has another digest"
    else:
        return
    raise DamagedError(f"shard {info.file} {why}", file=str(found.path / info.file))


def _digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _body_digest(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def _publish(aside: Path, final: Path) -> None:
    """Give a finished file its name, so that the name never stands for half a file."""
    descriptor = os.open(aside, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    aside.replace(final)
    _sync_folder(final.parent)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
