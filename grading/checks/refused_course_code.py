"""Refuse an answer that uses finished parts of shardlab or of the grader."""

import dis
import sys
from collections.abc import Iterator
from contextlib import suppress
from types import CodeType, FunctionType, ModuleType

_OURS = ("shardlab", "shardtrace", "shardnext", "shardsim", "shardplan", "shardcourse", "shardbench", "grading")
_REFUSED = (*_OURS, "importlib")
ALLOWED = ("assign_buckets", "local_device")


class NotAllowed(ImportError):
    """The student reads this error's message."""


def refuse_finished_parts(answer, rule: str) -> None:
    """Raise NotAllowed, with the lab's `rule`, if the answer or a helper that it reaches uses more than ALLOWED.

    TypeError if it can't be called at all.
    """
    if not callable(answer):
        raise TypeError(f"what was handed in is {answer!r:.40}: run the cell that defines your function or class")
    if (used := next(_used(answer, {}), None)) is not None:
        raise NotAllowed(f"the answer uses {used}: {rule}")


def _used(value, seen: dict[int, object]) -> Iterator[str]:
    """Yield names of refused things that the value reaches through code that was handed in."""
    if id(value) in seen:
        return
    seen[id(value)] = value  # kept alive, so that nothing else gets its id
    kind = value if isinstance(value, type | FunctionType | ModuleType) else type(value)
    home = kind.__name__ if isinstance(kind, ModuleType) else getattr(kind, "__module__", None) or ""
    name = getattr(kind, "__name__", "")
    if home.split(".")[0] in _REFUSED:
        if name not in ALLOWED:
            yield home if home == name else f"{home}.{name}"
    elif isinstance(value, ModuleType):
        return
    elif isinstance(value, list | tuple | set | frozenset):
        for child in value:
            yield from _used(child, seen)
    elif isinstance(value, dict):
        yield from _used(list(value.values()), seen)
    elif isinstance(value, FunctionType):
        yield from _imported(value.__code__)
        yield from _used([*_globals(value), *_closure(value), *vars(value).values()], seen)
        yield from _used([value.__defaults__, value.__kwdefaults__], seen)
    elif isinstance(value, type):
        if _handed_in(value):
            yield from _used([*vars(value).values(), *value.__mro__], seen)
    else:
        for attribute in ("func", "args", "keywords", "fget", "__func__", "__self__", "__wrapped__"):
            with suppress(AttributeError):
                yield from _used(getattr(value, attribute), seen)
        yield from _used([kind, *getattr(value, "__dict__", {}).values()] if _handed_in(kind) else [], seen)


def _handed_in(kind: type) -> bool:
    return kind.__module__ not in sys.modules or kind.__module__ == "__main__"


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _codes(inner)


def _imported(code: CodeType) -> Iterator[str]:
    """Yield refused names that import statements inside the code name."""
    for part in _codes(code):
        module = ""
        for step in dis.get_instructions(part):
            if step.opname == "IMPORT_NAME":
                module = step.argval
                if module.split(".")[0] in _REFUSED and "." not in module:
                    yield module
            elif step.opname == "IMPORT_FROM" and module.split(".")[0] in _REFUSED and step.argval not in ALLOWED:
                yield f"{module}.{step.argval}"


def _globals(function: FunctionType) -> list:
    steps = (step for code in _codes(function.__code__) for step in dis.get_instructions(code))
    names = {step.argval for step in steps if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    return [function.__globals__[name] for name in names if name in function.__globals__]


def _closure(function: FunctionType) -> list:
    found = []
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # an empty cell
            found.append(cell.cell_contents)
    return found
