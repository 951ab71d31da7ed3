"""What ``tomllib`` lacks: the line on which each key of a TOML file stands, and writing.

`positions` scans text that ``tomllib`` has already accepted, so it skips over values without judging them.
`dumps` writes plain data (dicts, lists, strings, numbers, booleans, dates) that loads back to equal data.
"""

from __future__ import annotations

import datetime
import re
import tomllib
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any

KeyPath = tuple[str | int, ...]
"""Where a value is: table keys, and the index in arrays: ``("host", 0, "up")``."""

_BLANK = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_SPACE = re.compile(r"[ \t]*")
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_BASIC = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_LITERAL = re.compile(r"'[^']*'")
_LONG_BASIC = re.compile(r'"""(?:[^"\\]|\\.|"{1,2}(?!"))*"""(?:"{0,2})', re.DOTALL)
_LONG_LITERAL = re.compile(r"'''(?:[^']|'{1,2}(?!'))*'''(?:'{0,2})", re.DOTALL)
_SCALAR = re.compile(r"[^,\]}#\n]*")


def positions(text: str) -> dict[KeyPath, int]:
    """KeyPath of every table, key and array entry in `text` → number of the line where it first stands, from 1.

    Args:
        text: valid TOML with ``\\n`` line ends.
    """
    return _Scanner(text).scan()


def key_path(text: str) -> tuple[str, ...]:
    """The parts of a dotted key: ``run.steps`` → ``("run", "steps")``; parts may be quoted.

    Raises:
        ValueError: not a dotted key.
    """
    scanner = _Scanner(text.strip())
    names = scanner.key()
    if scanner.at != len(scanner.text):
        raise ValueError(f"{text!r} is not a dotted key")
    return names


def dotted(path: KeyPath) -> str:
    """`path` as people write it: ``run.steps``, ``host[0].up``."""
    parts = [f"[{part}]" if isinstance(part, int) else f".{_key(part)}" for part in path]
    return "".join(parts).removeprefix(".")


def dumps(table: Mapping[str, Any]) -> str:
    """`table` as TOML text, in its own order: plain keys before sub-tables. Lists of dicts become arrays of tables.

    Raises:
        TypeError: a value that TOML cannot say.
    """
    return "\n".join(_table(table, ())).lstrip("\n") + "\n"


def inline(value: Any) -> str:
    """`value` on one line, as it stands after ``key =``.

    Raises:
        TypeError: a value that TOML cannot say.
    """
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case str():
            return _string(value)
        case datetime.date() | datetime.time():
            return value.isoformat()
        case Mapping():
            pairs = ", ".join(f"{_key(key)} = {inline(item)}" for key, item in value.items())
            return f"{{ {pairs} }}" if pairs else "{}"
        case Sequence():
            return f"[{', '.join(inline(item) for item in value)}]"
        case _:
            raise TypeError(f"TOML cannot say {value!r}")


def _table(table: Mapping[str, Any], path: tuple[str, ...]) -> list[str]:
    """The lines of `table`'s own pairs, then those of its sub-tables under their headers."""
    below = {key: value for key, value in table.items() if is_table(value)}
    lines = [f"{_key(key)} = {inline(value)}" for key, value in table.items() if key not in below]
    for key, value in below.items():
        inner = (*path, key)
        header = ".".join(map(_key, inner))
        single = isinstance(value, Mapping)
        for entry in [value] if single else value:
            lines += ["", f"[{header}]" if single else f"[[{header}]]", *_table(entry, inner)]
    return lines


def is_table(value: Any) -> bool:
    """Whether `value` is written under a header: a dict, or a list of dicts (an array of tables)."""
    if isinstance(value, list | tuple):
        return len(value) > 0 and all(isinstance(item, Mapping) for item in value)
    return isinstance(value, Mapping)


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _string(name)


def _string(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if c >= " " and c != "\x7f" else f"\\u{ord(c):04x}" for c in escaped) + '"'


class _Scanner:
    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0
        self.found: dict[KeyPath, int] = {}
        self._starts = [0, *(n + 1 for n, char in enumerate(text) if char == "\n")]
        self._entries: dict[KeyPath, int] = {}  # array of tables → entries so far

    def scan(self) -> dict[KeyPath, int]:
        table: KeyPath = ()
        while self._blank() < len(self.text):
            if self._take("[["):
                table = self._header(array=True)
                self._expect("]]")
            elif self._take("["):
                table = self._header(array=False)
                self._expect("]")
            else:
                self._pair(table)
        return self.found

    def key(self) -> tuple[str, ...]:
        """The dotted key that starts here."""
        names: list[str] = []
        while True:
            self._space()
            names.append(self._name())
            self._space()
            if not self._take("."):
                return tuple(names)

    def _header(self, *, array: bool) -> KeyPath:
        """The path of a table header; names of arrays of tables on the way mean their last entry."""
        at = self.at
        path: KeyPath = ()
        *above, last = self.key()
        for name in above:
            path = (*path, name)
            self._record(path, at)
            if path in self._entries:
                path = (*path, self._entries[path] - 1)
        path = (*path, last)
        self._record(path, at)
        if array:
            self._entries[path] = self._entries.get(path, 0) + 1
            path = (*path, self._entries[path] - 1)
            self._record(path, at)
        return path

    def _pair(self, table: KeyPath) -> None:
        at = self.at
        path = table
        for name in self.key():
            path = (*path, name)
            self._record(path, at)
        self._expect("=")
        self._space()
        self._value(path)

    def _value(self, path: KeyPath) -> None:
        if self._take("["):
            index = 0
            while not self._close("]"):
                self._record((*path, index), self.at)
                self._value((*path, index))
                index += 1
        elif self._take("{"):
            while not self._close("}"):
                self._pair(path)
        else:
            start = self.at
            for pattern in (_LONG_BASIC, _LONG_LITERAL, _BASIC, _LITERAL, _SCALAR):
                self._skip(pattern)
                if self.at > start:
                    return

    def _close(self, bracket: str) -> bool:
        """Skip blanks and commas between entries; true if the array or inline table ends here."""
        self._blank()
        while self._take(","):
            self._blank()
        return self._take(bracket)

    def _name(self) -> str:
        for pattern in (_BASIC, _LITERAL):
            if found := pattern.match(self.text, self.at):
                self.at = found.end()
                return tomllib.loads(f"value = {found[0]}")["value"]
        found = _BARE.match(self.text, self.at)
        if found is None:
            raise ValueError(f"{self.text[self.at :]!r} does not start with a key")
        self.at = found.end()
        return found[0]

    def _record(self, path: KeyPath, at: int) -> None:
        self.found.setdefault(path, bisect_right(self._starts, at))

    def _take(self, mark: str) -> bool:
        if self.text.startswith(mark, self.at):
            self.at += len(mark)
            return True
        return False

    def _expect(self, mark: str) -> None:
        self._space()
        if not self._take(mark):
            raise AssertionError(f"positions() was given text that is not TOML: no {mark!r} at {self.at}")

    def _blank(self) -> int:
        """Skip white space, comments and line ends."""
        self._skip(_BLANK)
        return self.at

    def _space(self) -> None:
        self._skip(_SPACE)

    def _skip(self, pattern: re.Pattern[str]) -> None:
        if found := pattern.match(self.text, self.at):
            self.at = found.end()
