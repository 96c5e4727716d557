"""Finds the code that depends on whether there is a GPU, in the source.

A place is a function (or a class, or a module) with an expression that asks for a GPU: `cuda` or `nccl` as a name or in
a text that is no docstring, `is_cuda`, `accelerator`, `pin_memory`, or a comparison of a device's type.
"""

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
FOLDERS = ("lib/shardlab", "lib/shardtrace", "lib/shardnext", "grading/checks", "grading/boxes")
_NAMES = ("cuda", "nccl", "accelerator", "pin_memory")


def places() -> dict[str, int]:
    """Return `file function` of each place below the project's top, and the number of such expressions there."""
    found: dict[str, int] = {}
    for path in (p for folder in FOLDERS for p in sorted((ROOT / folder).rglob("*.py"))):
        _look(ast.parse(path.read_text()), path.relative_to(ROOT).as_posix().removeprefix("lib/"), "", found)
    return found


def _look(node: ast.AST, file: str, function: str, found: dict[str, int]) -> None:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return  # a docstring
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        function = f"{function}.{node.name}".lstrip(".")
    if _asks(node):
        place = f"{file} {function}".rstrip()
        found[place] = found.get(place, 0) + 1
    for child in ast.iter_child_nodes(node):
        _look(child, file, function, found)


def _asks(node: ast.AST) -> bool:
    if isinstance(node, ast.Attribute | ast.Name | ast.keyword):
        name = {ast.Attribute: "attr", ast.Name: "id", ast.keyword: "arg"}[type(node)]
        return any(part in (getattr(node, name) or "") for part in _NAMES)
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str) and ("cuda" in node.value or "nccl" in node.value)
    if not isinstance(node, ast.Compare):
        return False
    sides = [node.left, *node.comparators]
    return any(isinstance(s, ast.Attribute) and s.attr == "type" for s in sides) and any(
        isinstance(s, ast.Constant) for s in sides
    )


def line_of(place: str, statement: str) -> tuple[str, int]:
    """Return file and line of a statement, given by its beginning, in a place. Raises LookupError if there is none."""
    file, function = place.split(" ")
    path = ROOT / ("lib/" + file if file.startswith("shard") else file)
    lines = path.read_text().splitlines()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef) and node.name == function.split(".")[-1]:
            for number in range(node.lineno, node.end_lineno + 1):
                if lines[number - 1].strip().startswith(statement):
                    return file, number
    raise LookupError(f"no line of {place} begins with {statement}")
