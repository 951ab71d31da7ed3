"""Checking what a job leaves to its strategies: their names, and the options that only they know."""

from __future__ import annotations

from pydantic import BaseModel, ValidationError

from shoal import registry, schema
from shoal.errors import UserError
from shoal.files import check
from shoal.job.job import Job
from shoal.units import FILE

_TABLES = {"optim": "optimizer", "mixing": "mixing"}
"""Seam → the table of the job file that names its strategy and holds the strategy's options."""

_NAMES = {"topology": ("mixing", "topology"), "transport": ("run", "transport")}
"""Seam → the key that names its strategy, where it has no table."""


def validate_options(job: Job) -> dict[str, BaseModel]:
    """Check the names and options of all strategies of `job`.

    Called when a run is built, since it imports the strategies, and torch with them.

    Returns:
        Seam → the validated options, for each strategy that has an ``Options`` model.

    Raises:
        UserError: an unknown strategy, an unknown option or a value that cannot be used; with file, line and mend.
    """
    problems: list[UserError] = []
    found: dict[str, BaseModel] = {}
    for seam, (table, key) in _NAMES.items():
        name = getattr(getattr(job, table), key)
        if name is not None:
            problems += _name_problems(job, seam, f"{table}.{key}", name)
    for seam, table in _TABLES.items():
        chosen = getattr(job, table)
        wrong_name = _name_problems(job, seam, f"{table}.name", chosen.name)
        problems += wrong_name
        model = None if wrong_name else options_model(seam, chosen.name)
        if model is not None:
            try:
                context = FILE if job.source.file else None
                found[seam] = model.model_validate(chosen.extra, context=context)
            except ValidationError as failed:
                problems += job.source.problems(failed, Job, at=(table,), options=model)
    check(problems, file=job.source.file)
    return found


def options_model(seam: str, name: str) -> type[BaseModel] | None:
    """The schema of the options of strategy `name`; None for a ``package.module:name`` that takes what it is given."""
    missing = None if ":" in name else registry.NoOptions
    return getattr(registry.load(seam, name), "Options", missing)


def _name_problems(job: Job, seam: str, key: str, name: str) -> list[UserError]:
    """What is wrong with the name of a strategy: nothing, or one problem."""
    known = registry.names(seam)
    if name in known:
        return []
    if ":" not in name:
        return [job.error(key, f"no such {seam}", mend=schema.nearest(name, known))]
    try:
        registry.strategy(seam, name)
    except UserError as error:
        return [job.error(key, error.problem, mend=error.mend or "write package.module:name")]
    return []
