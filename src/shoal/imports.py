"""Code that a job names as ``package.module:name``: found, called, and explained if it fails.

A module is looked for in the job's folder first, then where Python always looks.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from shoal.errors import UserError


def resolve(name: str, *, key: str, base: Path | None = None) -> Callable[..., Any]:
    """The callable that `name` names.

    Args:
        key: the job's key that holds `name`, for the message.
        base: the job's folder.

    Raises:
        UserError: `name` is not of the form ``module:callable``, or its module or attribute does not exist, does not
            import or cannot be called.
    """
    module_name, colon, attribute = name.rpartition(":")
    if not colon or not module_name or not attribute:
        raise UserError("not the name of a callable", key=key, value=name, mend="write package.module:callable")
    found: Any = _module(module_name, name, key, base)
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise UserError(
                f"{module_name} has no {part!r}", key=key, value=name, mend=_nearest(part, _public(found), "write")
            )
        found = getattr(found, part)
    if not callable(found):
        raise UserError(f"{attribute} in {module_name} cannot be called", key=key, value=name, mend="name a callable")
    return found


def call(function: Callable[..., Any], args: Mapping[str, Any], *, key: str, context: Mapping[str, Any]) -> Any:
    """``function(**args)``, with those entries of `context` added that it has a parameter for and `args` does not set.

    Args:
        key: the job's key that holds `args`, for the message.

    Raises:
        UserError: the arguments do not fit, or the function refuses them with a `TypeError` or `ValueError`.
    """
    name = getattr(function, "__qualname__", repr(function))
    parameters = _parameters(function)
    args = {**{k: v for k, v in context.items() if k in parameters and k not in args}, **args}
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    named = [p.name for p in parameters.values() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    if parameters and not takes_any:
        for arg in args:
            if arg not in named:
                raise UserError(f"{name} takes no {arg!r}", key=f"{key}.{arg}", mend=_nearest(arg, named, "it takes"))
    missing = [n for n in named if parameters[n].default is inspect.Parameter.empty and n not in args]
    if missing:
        raise UserError(f"{name} needs {', '.join(missing)}", key=key, mend=f"write {key}.{missing[0]} = …")
    try:
        return function(**args)
    except UserError:
        raise
    except (TypeError, ValueError) as error:
        raise UserError(f"{name} refused its arguments: {_explain(error)}", key=key) from error


def _module(module_name: str, name: str, key: str, base: Path | None) -> ModuleType:
    try:
        return _import(module_name, base)
    except Exception as error:
        absent = error.name if isinstance(error, ModuleNotFoundError) else None
        if absent and f"{module_name}.".startswith(f"{absent}."):
            beside = [p.stem for p in base.glob("*.py")] if base else []
            mend = _nearest(module_name, beside, "modules in the job's folder are") if beside else "is it installed?"
            raise UserError(f"no module named {absent!r}", key=key, value=name, mend=mend) from error
        mend = f"install {absent!r}" if absent else "mend the module"
        raise UserError(
            f"{module_name} cannot be imported: {_explain(error)}", key=key, value=name, mend=mend
        ) from error


def _import(module_name: str, base: Path | None) -> ModuleType:
    """Import with the job's folder first on the path; it stays last on the path, for the module's own later imports."""
    if base is None:
        return importlib.import_module(module_name)
    importlib.invalidate_caches()  # the file may be newer than Python's list of the folder
    folder = str(base.resolve())
    if folder not in sys.path:
        sys.path.append(folder)
    sys.path.insert(0, folder)
    try:
        return importlib.import_module(module_name)
    finally:
        sys.path.remove(folder)


def _parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):  # some callables written in C have no signature
        return {}


def _public(thing: object) -> list[str]:
    return [n for n in dir(thing) if not n.startswith("_")]


def _nearest(name: str, known: Iterable[str], otherwise: str) -> str:
    known = sorted(known)
    near = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {near[0]!r}?" if near else f"{otherwise} {', '.join(known[:12]) or 'nothing'}"


def _explain(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{where}"
