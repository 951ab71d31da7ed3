"""The commented example that ``shoal init`` writes, made from the schema: it cannot drift from what is accepted."""

from __future__ import annotations

from shoal import schema
from shoal.job.job import Job

_HEAD = """\
What to train, how, and for how long. Every key is optional and stands here with its default.
Quantities carry their unit: "15 s", "4 MiB". A key that is commented out shows an example.
Check it with `shoal simulate job.toml`, run it with `shoal train job.toml`."""


def template() -> str:
    """A complete ``job.toml`` with every key, its meaning and its default."""
    return schema.template(Job, head=_HEAD)
