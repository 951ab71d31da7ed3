"""Looking into the pydantic schema of a file: its tables and keys, and which known key a wrong one was meant to be."""

from __future__ import annotations

import difflib
import inspect
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from shoal.toml import KeyPath, inline
from shoal.units import Quantity


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """One table of a file: its `path` without indices (empty: the top level) and its schema.

    `array` tells ``[[host]]`` from ``[run]``.
    """

    path: tuple[str, ...]
    model: type[BaseModel]
    array: bool = False

    @property
    def header(self) -> str:
        """As it stands in the file; empty for the top level."""
        name = ".".join(self.path)
        return f"[[{name}]]" if self.array else f"[{name}]" if name else ""

    @property
    def keys(self) -> Mapping[str, FieldInfo]:
        """The keys that are values, not tables."""
        return {name: known for name, known in fields(self.model).items() if _inner(known)[0] is None}


def tables(model: type[BaseModel]) -> Iterator[Table]:
    """Every table of the file that `model` describes, from the top, in the order of the schema."""
    yield from _tables(Table(path=(), model=model))


def _tables(table: Table) -> Iterator[Table]:
    yield table
    for name, known in fields(table.model).items():
        inner, array = _inner(known)
        if inner is not None:
            yield from _tables(Table(path=(*table.path, name), model=inner, array=array))


def fields(model: type[BaseModel]) -> dict[str, FieldInfo]:
    """The fields of `model` by the name that they have in the file."""
    return {known.alias or name: known for name, known in model.model_fields.items()}


def field_at(model: type[BaseModel], path: KeyPath) -> FieldInfo | None:
    """The schema of the key at `path` (indices are skipped); None if there is none."""
    names = [part for part in path if isinstance(part, str)]
    found: FieldInfo | None = None
    here: type[BaseModel] | None = model
    for name in names:
        if here is None or name not in fields(here):
            return None
        found = fields(here)[name]
        here = _inner(found)[0]
    return found


def suggest(model: type[BaseModel], path: KeyPath, *, options: type[BaseModel] | None = None) -> str:
    """What to write instead of the unknown key at `path`: the nearest known key, or the table the key belongs in.

    Args:
        options: a second schema of the table that holds the key.
    """
    names = tuple(part for part in path if isinstance(part, str))
    level, wrong = names[:-1], _plain(names[-1])
    known = {table: {_plain(key): key for key in fields(table.model)} for table in tables(model)}
    here = {plain: key for table, keys in known.items() if table.path == level for plain, key in keys.items()}
    here |= {_plain(key): key for key in (fields(options) if options else ())}
    if wrong in here:
        return f"did you mean {here[wrong]!r}?"
    if wrong in (every := {plain for keys in known.values() for plain in keys}):
        return f"it belongs {_places(known, wrong)}"
    likeness, best = _most_like(wrong, here)
    elsewhere, key = _most_like(wrong, every)
    if elsewhere > max(0.8, likeness + 0.1):
        return f"did you mean {key!r} {_places(known, key)}?"
    if likeness > 0.6:
        return f"did you mean {here[best]!r}?"
    return f"known here: {', '.join(sorted(here.values()))}" if here else "this table has no keys"


def nearest(value: object, known: Sequence[str]) -> str:
    """What to write instead of `value`: the nearest of `known`, or all of them."""
    near = difflib.get_close_matches(str(value), known, n=1)
    if near:
        return f"did you mean {near[0]!r}?"
    some = [repr(name) for name in known[:12]] + ["…"] * (len(known) > 12)
    return f"write {one_of(some)}" if some else ""


def choices(known: FieldInfo | None) -> list[str]:
    """The texts that a ``Literal`` key may have."""
    annotation = known.annotation if known else None
    return [str(choice) for choice in get_args(annotation)] if get_origin(annotation) is Literal else []


def example(known: FieldInfo) -> str:
    """A value for the key, as TOML: its first example, else its default."""
    if known.examples:
        return inline(known.examples[0])
    return default(known) or "..."


def example_line(known: FieldInfo, name: str) -> str:
    """How the key may be written: ``steps = 100``; the header, if it holds a table."""
    inner, array = _inner(known)
    if inner is not None:
        return f"[[{name}]]" if array else f"[{name}]"
    return f"{name} = {example(known)}"


def default(known: FieldInfo) -> str:
    """The key's default as TOML, with its unit; empty if the key is required or absent by default."""
    value = known.get_default(call_default_factory=True, validated_data={})
    if value is None or value is PydanticUndefined:
        return ""
    unit = quantity(known)
    return inline(unit.write(value) if unit else value)


def quantity(known: FieldInfo) -> Quantity | None:
    """The kind of quantity that the key holds, if it is one with a unit."""
    metadata = [*known.metadata, *(data for part in get_args(known.annotation) for data in get_args(part)[1:])]
    return next((data for data in metadata if isinstance(data, Quantity)), None)


def template(model: type[BaseModel], *, head: str) -> str:
    """A commented example of the file that `model` describes: every key with its description and default.

    Keys without a default, or whose default is best left alone, are commented out with an example.
    """
    lines = comment(head)
    for table in tables(model):
        lines += ["", *comment(inspect.cleandoc(table.model.__doc__ or "")), table.header] if table.path else [""]
        for name, known in table.keys.items():
            lines += comment(known.description or "")
            lines.append(f"{'# ' if known.examples else ''}{example_line(known, name)}")
    return "\n".join(lines) + "\n"


def reference(model: type[BaseModel]) -> str:
    """Every table and key of the file that `model` describes, as comments, for files whose keys are mostly required."""
    lines: list[str] = []
    for table in tables(model):
        if not table.keys:
            continue
        lines += ["#", *comment(inspect.cleandoc(table.model.__doc__ or ""))]
        lines += [f"# {table.header}"] if table.path else []
        for name, known in table.keys.items():
            meaning = ("required. " if known.is_required() else "") + (known.description or "")
            first, *more = textwrap.wrap(meaning, 62)
            lines.append(f"# {example_line(known, name):<34}# {first}")
            lines += [f"# {'':<34}# {line}" for line in more]
    return "\n".join(lines) + "\n"


def comment(text: str) -> list[str]:
    """`text` as TOML comments of at most 100 characters."""
    return [f"# {line}" for part in text.replace("``", "`").splitlines() for line in textwrap.wrap(part, 98)]


def _inner(known: FieldInfo) -> tuple[type[BaseModel] | None, bool]:
    """The schema of the table that the key holds, and whether it is an array of them."""
    for annotation in (known.annotation, *get_args(known.annotation)):
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            return annotation, get_origin(known.annotation) is list
    return None, False


def _places(known: Mapping[Table, Mapping[str, str]], plain: str) -> str:
    """Where in the file the key `plain` is known."""
    headers = [table.header for table, keys in known.items() if plain in keys and table.header]
    return f"in {one_of(headers)}" if headers else "at the top, before the first table"


def _most_like(wrong: str, keys: Iterable[str]) -> tuple[float, str]:
    """How much the most similar of `keys` is like `wrong` (0 to 1), and which it is."""
    return max(((difflib.SequenceMatcher(None, wrong, key).ratio(), key) for key in keys), default=(0.0, ""))


def _plain(key: str) -> str:
    return key.casefold().replace("-", "_")


def one_of(words: Sequence[str]) -> str:
    """``a, b or c``."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"
