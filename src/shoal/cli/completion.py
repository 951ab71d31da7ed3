"""What the shell offers when TAB is pressed. Nothing here may import torch or read more than names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path


def complete_seam(incomplete: str) -> list[str]:
    """Seams that begin so."""
    from shoal.registry import SEAMS

    return sorted(name for name in SEAMS if name.startswith(incomplete))


def complete_toml(incomplete: str) -> list[str]:
    """TOML files, and folders on the way to them."""
    return _paths(incomplete, lambda path: path.is_dir() or path.suffix == ".toml")


def complete_run(incomplete: str) -> list[str]:
    """Folders: a run is one."""
    return _paths(incomplete, lambda path: path.is_dir())


def complete_key(incomplete: str) -> list[str]:
    """``table.key=`` for every key of a job, and after ``=`` the strategies where one is named."""
    from shoal.job import Job

    key, equals, value = incomplete.partition("=")
    if equals:
        return [f"{key}={name}" for name in _strategies(key) if name.startswith(value)]
    keys = []
    for table, field in Job.model_fields.items():
        inner = getattr(field.annotation, "model_fields", None)
        keys += [f"{table}="] if inner is None else [f"{table}.{name}=" for name in inner]
    return sorted(key for key in keys if key.startswith(incomplete))


def _strategies(key: str) -> list[str]:
    from shoal.registry import names

    seam = {
        "mixing.name": "mixing",
        "mixing.topology": "topology",
        "optimizer.name": "optim",
        "run.transport": "transport",
    }
    return names(seam[key]) if key in seam else []


def _paths(incomplete: str, wanted: Callable[[Path], bool]) -> list[str]:
    folder, _, stem = incomplete.rpartition("/")
    where = Path(folder or ("/" if incomplete.startswith("/") else "."))
    prefix = f"{folder}/" if folder else "/" if incomplete.startswith("/") else ""
    if not where.is_dir():
        return []
    found = [path for path in where.iterdir() if path.name.startswith(stem) and not path.name.startswith(".")]
    return sorted(f"{prefix}{path.name}{'/' if path.is_dir() else ''}" for path in found if wanted(path))
