"""A prediction is arithmetic: it gets plain numbers, and neither torch nor shardlab, whose planner has the answers."""

import importlib.abc
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import CodeType, FunctionType, ModuleType

# The planner and whatever imports it; subprocess, which would have another process ask it.
REFUSED = ("torch", "shardlab", "shardsim", "shardplan", "shardcourse", "shardbench", "grading", "subprocess")


class Refused(ImportError):
    """What the student reads."""


def foreign(answer) -> str | None:
    """A name of a refused library that the answer refers to, directly or through its helpers; None if there is none."""
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
    """What can be had through a value, each with its name."""
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
        if type(value).__module__ not in sys.stdlib_module_names:  # an object of the submission's own class
            yield type(value).__name__, type(value)


def _home(value) -> str:
    """The module of a class or function, or of a value's class."""
    kind = value if isinstance(value, type | FunctionType) else type(value)
    return getattr(kind, "__module__", None) or ""


def _referred(function: FunctionType) -> Iterator[tuple[str, object]]:
    """What a function can reach: those of its globals that its code names, closures, defaults, what it wraps."""
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
    """Inside, the refused libraries can't be imported, though they are loaded."""
    away = {name: sys.modules.pop(name) for name in list(sys.modules) if name.split(".")[0] in REFUSED}
    finder = _Refuse()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        sys.modules.update(away)
