"""Reading the TOML files that people write, and saying precisely what is wrong with one.

`read_toml` gives a validated pydantic model, or a `UserError` with file, line, key, value and mend for every problem.
`Source` is the same in two steps, for those who check more than a schema can: it remembers where each key stands, so
that any later complaint (`Source.error`) can point at it. Keys set on the command line (``--set run.steps=20``) are
overlaid before validation, and complaints about them name the flag.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from shoal import schema
from shoal.errors import UserError
from shoal.toml import KeyPath, dotted, inline, is_table, key_path, positions
from shoal.units import FILE, WrongValueError

M = TypeVar("M", bound=BaseModel)

_AT_LINE = re.compile(r" \(at (?:line (\d+), column \d+|end of document)\)$")
_RANGES = {
    "greater_than": "must be more than {gt:g}",
    "greater_than_equal": "must be at least {ge:g}",
    "less_than": "must be less than {lt:g}",
    "less_than_equal": "must be at most {le:g}",
}
_TYPES = {
    "int_type": "must be a whole number",
    "float_type": "must be a number",
    "bool_type": "must be true or false",
    "string_type": "must be text in quotes",
    "list_type": "must be a list",
    "dict_type": "must be a table",
    "model_type": "must be a table",
    "model_attributes_type": "must be a table",
    "finite_number": "must be finite",
    "string_too_short": "must not be empty",
    "too_short": "must not be empty",
}


def read_toml(path: str | Path, model: type[M], *, overrides: Sequence[str] = ()) -> M:
    """Read and validate a TOML file.

    Args:
        overrides: ``"dotted.key=TOML value"`` texts, as given to ``--set``; quotes around plain text may be left out.

    Raises:
        UserError: names the file, the line, the key, the value and the mend, for all problems at once.
    """
    return Source.read(path, overrides=overrides).validate(model)


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A TOML file as it was read.

    Args:
        file: its path as the person gave it; empty for tables that come from no file.
        raw: its content, overrides included.
        lines: path of every key → line.
        flags: path of every key that was set on the command line → the flag, as typed.
    """

    file: str = ""
    raw: Mapping[str, Any] = field(default_factory=dict)
    lines: Mapping[KeyPath, int] = field(default_factory=dict)
    flags: Mapping[KeyPath, str] = field(default_factory=dict)

    @classmethod
    def read(cls, path: str | Path, *, overrides: Sequence[str] = ()) -> Source:
        """Read a file and overlay `overrides`.

        Raises:
            UserError: the file is missing, unreadable, empty or not TOML, or an override is not ``key=value``.
        """
        return cls.parse(_text(Path(path)), file=str(path), overrides=overrides)

    @classmethod
    def parse(cls, text: str, *, file: str, overrides: Sequence[str] = ()) -> Source:
        """The same from `text`, which `file` is only a name for."""
        text = text.replace("\r\n", "\n")
        try:
            raw = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise _syntax_error(str(error), text, file) from None
        if not raw:
            raise UserError("the file is empty", file=file, mend="`shoal init` writes an example with every key")
        flags = {_override(raw, text): f"--set {text}" for text in overrides}
        return cls(file=file, raw=raw, lines=positions(text), flags=flags)

    def validate(self, model: type[M]) -> M:
        """The content as a `model`.

        Raises:
            UserError: all problems.
        """
        try:
            return model.model_validate(dict(self.raw), context=FILE)
        except ValidationError as failed:
            raise several(self.problems(failed, model), file=self.file) from None

    def error(self, key: str | KeyPath, problem: str, *, mend: str = "", shown: bool = True) -> UserError:
        """A complaint about the value at `key` (``"run.steps"``, or its parts), with its file and line (or flag).

        Args:
            shown: whether the message quotes the value.
        """
        path = _path(key) if isinstance(key, str) else key
        value = self.value(path) if shown else None
        if is_table(value) or len(str(value)) > 80:
            value = None
        flag = next((self.flags[path[:n]] for n in range(len(path), 0, -1) if path[:n] in self.flags), None)
        line = None if flag else self.line(path)
        file = flag or self.file or None
        return UserError(problem, mend=mend, file=file, key=dotted(path), value=value, line=line)

    def line(self, path: KeyPath) -> int | None:
        """The line of `path`, or of the nearest table around it that stands in the file."""
        return next((self.lines[path[:n]] for n in range(len(path), 0, -1) if path[:n] in self.lines), None)

    def value(self, path: KeyPath) -> Any:
        """What the file says at `path`; None if nothing."""
        value: Any = self.raw
        for part in path:
            try:
                value = value[part]
            except (KeyError, IndexError, TypeError):
                return None
        return value

    def problems(
        self,
        failed: ValidationError,
        model: type[BaseModel],
        *,
        at: KeyPath = (),
        options: type[BaseModel] | None = None,
    ) -> list[UserError]:
        """Each problem that pydantic found, worded for the person who wrote the file, in the order of the file.

        Args:
            model: the schema of the whole file.
            at: path of the table that was validated, if not the whole file.
            options: the schema that the table at `at` has besides its own, if it is a strategy's.
        """
        details = failed.errors(include_url=False)
        found = [self._word(dict(detail), model, at, options) for detail in details if _is_told(detail["type"])]
        return sorted(found, key=lambda problem: problem.line or 0)

    def _word(
        self, detail: dict[str, Any], model: type[BaseModel], at: KeyPath, options: type[BaseModel] | None
    ) -> UserError:
        path, kind, ctx = (*at, *detail["loc"]), detail["type"], detail.get("ctx", {})
        while path and kind != "missing" and self.value(path) is None:
            path = path[:-1]  # pydantic adds the names of alternatives
        wrong = ctx.get("error")
        if isinstance(wrong, WrongValueError):
            inner = key_path(wrong.key) if wrong.key else ()
            return self.error((*path, *inner), wrong.problem, mend=wrong.mend)
        if kind == "extra_forbidden":
            value = self.value(path)
            line = f"{path[-1]} = {_short(value)}"
            problem = "unknown table" if is_table(value) else f"unknown key in `{line}`"
            return self.error(path, problem, mend=schema.suggest(model, path, options=options), shown=False)
        known = schema.field_at(options, path[len(at) :]) if options else schema.field_at(model, path)
        name = path[-1] if path else None
        example = f"write e.g. {schema.example_line(known, name)}" if known and isinstance(name, str) else ""
        if kind == "missing":
            return self.error(path, "the key is missing", mend=example, shown=False)
        if kind == "literal_error":
            return self.error(path, "no such choice", mend=schema.nearest(self.value(path), schema.choices(known)))
        if kind == "string_pattern_mismatch":
            meaning = f" ({known.description})" if known and known.description else ""
            return self.error(path, "not of the right form", mend=f"{example}{meaning}")
        if kind in _RANGES:
            return self.error(path, _RANGES[kind].format(**ctx))
        return self.error(path, _TYPES.get(kind) or str(detail["msg"]).removeprefix("Value error, "), mend=example)


def several(problems: Sequence[UserError], *, file: str = "") -> UserError:
    """One error for all `problems` (at least one), a line each."""
    if len(problems) == 1:
        return problems[0]
    lines = "\n".join(f"  {problem}" for problem in problems)
    return UserError(f"{len(problems)} problems\n{lines}", file=file or None)


def check(problems: Iterable[UserError], *, file: str = "") -> None:
    """Raise all `problems` as one error; nothing if there are none."""
    if found := list(problems):
        raise several(found, file=file)


def _path(key: str) -> KeyPath:
    """The parts of a dotted key; a text that is none is one part."""
    try:
        return key_path(key)
    except ValueError:
        return (key,)


def _is_told(kind: str) -> bool:
    """A default that could not be made is only the consequence of another problem, which is told."""
    return kind != "default_factory_not_called"


def _text(path: Path) -> str:
    """The text of the file at `path`, or one clear line on why there is none."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        beside = [p.name for p in path.parent.glob("*.toml")] if path.parent.is_dir() else []
        near = difflib.get_close_matches(path.name, beside, n=1, cutoff=0.5)
        mend = f"did you mean {str(path.with_name(near[0]))!r}?" if near else "`shoal init` writes an example"
        raise UserError("no such file", file=str(path), mend=mend) from None
    except IsADirectoryError:
        raise UserError("this is a folder", file=str(path), mend="give the path of a TOML file in it") from None
    except UnicodeDecodeError as error:
        raise UserError(f"not UTF-8 text (byte {error.start})", file=str(path), mend="save it as UTF-8") from None
    except OSError as error:
        raise UserError(
            f"cannot be read: {error.strerror}", file=str(path), mend="check the path and its permissions"
        ) from None


def _syntax_error(message: str, text: str, file: str) -> UserError:
    """tomllib's complaint with the text of the line."""
    lines = text.split("\n")
    found = _AT_LINE.search(message)
    line = int(found[1]) if found and found[1] else max(1, len(text.rstrip().split("\n")))
    reason = _AT_LINE.sub("", message)
    mend = "look for an open bracket or quote here or above"
    if "after a statement" in reason or "Invalid value" in reason:
        mend = 'text and quantities stand in quotes, as in key = "20 ms"'
    elif "overwrite" in reason or "twice" in reason:
        mend = "it is written a second time here; delete one of the two"
    return UserError(f"not TOML: {reason} in `{lines[line - 1].strip()}`", file=file, line=line, mend=mend)


def _override(raw: dict[str, Any], text: str) -> KeyPath:
    """Set the key in `raw` that `text` (``run.steps=20``) names; returns its path."""
    name, equals, said = text.partition("=")
    flag = f"--set {text}"
    try:
        path = key_path(name)
    except ValueError:
        path = ()
    if not path or not equals:
        raise UserError("not KEY=VALUE", file=flag, mend="write e.g. --set run.steps=20")
    table: Any = raw
    for n, part in enumerate(path[:-1], start=1):
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            raise UserError("not a table, so no key in it can be set", file=flag, key=dotted(path[:n]))
    table[path[-1]] = _override_value(said.strip(), flag)
    return path


def _override_value(said: str, flag: str) -> Any:
    """The TOML value in `said`; text whose quotes the shell has eaten (``20 ms``, ``gossip``) is taken as text."""
    try:
        parsed = tomllib.loads(f"value = {said}")
    except tomllib.TOMLDecodeError as error:
        if said and said[0] not in "[{\"'":
            return said
        raise UserError(
            f"not a TOML value: {_AT_LINE.sub('', str(error))}", file=flag, mend="check its brackets"
        ) from None
    if set(parsed) != {"value"}:
        raise UserError("more than one value", file=flag, mend="write one --set for each key")
    return parsed["value"]


def _short(value: Any) -> str:
    text = inline(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
