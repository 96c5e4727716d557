"""Limits for a prediction: it gets plain numbers, and neither torch nor shardlab.

shardlab's planner would give the answers.
"""

import importlib.abc
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import CodeType, FunctionType, ModuleType

# The planner, everything that imports it, and subprocess, which could ask the planner in another process.
REFUSED = ("torch", "shardlab", "shardtrace", "shardnext", "shardsim", "shardplan", "shardcourse", "shardbench")
REFUSED += ("grading", "subprocess")


class Refused(ImportError):
    """Import refused: the student reads this error's message."""


def foreign(answer) -> str | None:
    """Return words that name a refused library which the answer uses, itself or through its helpers; else None."""
    return next(_foreign(answer, "the answer", set()), None)


def _foreign(value, name: str, seen: set[int]) -> Iterator[str]:
    if id(value) in seen:
        return
    seen.add(id(value))
    home = value.__name__ if isinstance(value, ModuleType) else _home(value)
    if home.split(".")[0] in REFUSED:
        yield f"{name} is of {home}"
    elif not isinstance(value, ModuleType):
        for inner, child in _reached(value, name):
            yield from _foreign(child, inner, seen)


def _reached(value, name: str) -> Iterator[tuple[str, object]]:
    """Yield (name, object) for everything that is reachable through a value."""
    if isinstance(value, FunctionType):
        yield from _referred(value)
    elif isinstance(value, dict):
        yield from ((str(key), child) for key, child in value.items())
    elif isinstance(value, list | tuple | set | frozenset):
        yield from ((name, child) for child in value)
    else:
        for attribute in ("func", "args", "keywords", "fget", "__func__", "__self__", "__wrapped__"):
            with suppress(Exception):
                yield name, getattr(value, attribute)
        yield from list(vars(value).items()) if hasattr(value, "__dict__") else ()
        if type(value).__module__ not in sys.stdlib_module_names:  # an object of one of the submission's classes
            yield type(value).__name__, type(value)


def _home(value) -> str:
    """Return the module of a class or function, or of a value's class."""
    kind = value if isinstance(value, type | FunctionType) else type(value)
    return getattr(kind, "__module__", None) or ""


def _referred(function: FunctionType) -> Iterator[tuple[str, object]]:
    """Yield everything a function can reach: globals that its code names, closures, defaults, its attributes."""
    for name in _names(function.__code__):
        if name in function.__globals__:
            yield name, function.__globals__[name]
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # an empty cell
            yield name, cell.cell_contents
    for value in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
        yield function.__name__, value
    yield from vars(function).items()


def _names(code: CodeType) -> set[str]:
    inner = (c for c in code.co_consts if isinstance(c, CodeType))
    return set(code.co_names).union(*map(_names, inner))


class _Refuse(importlib.abc.MetaPathFinder):
    def find_spec(self, name: str, path, target=None):
        if name.split(".")[0] in REFUSED:
            raise Refused(f"the answer imports {name}")
        return None


@contextmanager
def nothing_but_arithmetic() -> Iterator[None]:
    """Make the refused libraries impossible to import inside the block, even if they are loaded."""
    away = {name: sys.modules.pop(name) for name in list(sys.modules) if name.split(".")[0] in REFUSED}
    finder = _Refuse()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        sys.modules.update(away)
