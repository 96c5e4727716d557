"""Find the notebook's functions behind an answer, and whether they use the graders' own answers."""

from collections.abc import Iterator
from contextlib import suppress
from types import CodeType, FunctionType, ModuleType

GRADERS = ("grading.checks", "grading.references")
_WRAPPED = ("func", "__wrapped__", "__func__")  # of a partial, of what a decorator returns, of a method


def functions_of(answer) -> list[FunctionType]:
    """Return the functions that the answer is, wraps, or names, in the order in which they are found."""
    found: dict[int, FunctionType] = {}
    _collect(answer, found, set())
    return list(found.values())


def use_of_graders(answer) -> str:
    """Return the name by which the answer reaches the graders' modules; "" if it does not."""
    for function in functions_of(answer):
        if function.__module__.startswith(GRADERS):
            return function.__name__
        for name, value in _values(function):
            home = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
            if str(home).startswith(GRADERS):
                return name
        for word in _words(function.__code__):
            if word.startswith(GRADERS):
                return word
    return ""


def _collect(value, found: dict[int, FunctionType], seen: set[int]) -> None:
    if id(value) in seen or str(getattr(value, "__module__", "")).split(".")[0] in ("torch", "shardlab"):
        return
    seen.add(id(value))
    if isinstance(value, FunctionType):
        found[id(value)] = value
        for _, child in _values(value):
            _collect(child, found, seen)
    for child in (vars(type(value)).get("__call__"), *(getattr(value, name, None) for name in _WRAPPED)):
        if isinstance(child, FunctionType) or (callable(child) and hasattr(child, "__wrapped__")):
            _collect(child, found, seen)


def _values(function: FunctionType) -> Iterator[tuple[str, object]]:
    """Yield (name, value) of what the function's code names in its module, and of what it closes over."""
    for name in _words(function.__code__):
        if name in function.__globals__:
            yield name, function.__globals__[name]
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # an empty cell
            yield name, cell.cell_contents


def _words(code: CodeType) -> set[str]:
    """Return the names and the strings in a function's code, and in the functions inside it."""
    inner = (c for c in code.co_consts if isinstance(c, CodeType))
    strings = {c for c in code.co_consts if isinstance(c, str)}
    return strings.union(code.co_names, *map(_words, inner))
