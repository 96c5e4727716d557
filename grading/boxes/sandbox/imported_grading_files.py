"""Which files of `grading` a box shows: those that the program in it imports, and no other.

A submission's ranks need the drills, and no judge; the reference's ranks need the answers, too. So what a program
imports is all that can be read where it runs.
"""

import ast
import importlib.util
from collections.abc import Iterator
from functools import cache
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[3]
_ROOM = "grading"


@cache
def files_of(*modules: str) -> tuple[Path, ...]:
    """Return the files behind these modules of `grading` and behind what they import from it, and their bytecode."""
    found: set[Path] = set()
    waiting = list(modules)
    while waiting:
        name = waiting.pop()
        for path in _files(name):
            if path not in found:
                found.add(path)
                waiting += _imported(path)
    compiled = (Path(importlib.util.cache_from_source(str(path))) for path in found)
    return tuple(sorted(found.union(filter(Path.is_file, compiled))))


def _files(module: str) -> Iterator[Path]:
    """Yield the module's file, if there is one, and the `__init__.py` of each package above it."""
    place = _ROOT.joinpath(*module.split("."))
    for path in (place.with_suffix(".py"), place / "__init__.py", *(p / "__init__.py" for p in place.parents)):
        if path.is_file() and path.is_relative_to(_ROOT / _ROOM):
            yield path


def _imported(path: Path) -> Iterator[str]:
    """Yield the modules of `grading` that a file imports, also inside its functions."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == _ROOM:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == _ROOM)
