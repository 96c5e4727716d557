"""Every wait of the library's engines, found in their source; and an import that leaves one of them out.

A wait is a call of a method with one of the names in `METHODS`. To leave it out is to put what it is called on in its
place.
"""

import ast
import importlib.util
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import NamedTuple

METHODS = {"wait_stream", "wait_event", "wait", "record_stream", "synchronize", "_wait_for_gradient"}
NOT_ENGINES = {"launch", "measure"}  # launch waits for threads and processes, measure for the end of what it times


class Wait(NamedTuple):
    file: str  # below shardlab/
    line: int
    column: int
    text: str
    function: str

    def __str__(self) -> str:
        return f"{self.file} {self.function}: {self.text}"


def found() -> list[Wait]:
    folder = Path(importlib.util.find_spec("shardlab").origin).parent
    paths = [p for p in sorted(folder.rglob("*.py")) if p.relative_to(folder).parts[0] not in NOT_ENGINES]
    return [wait for path in paths for wait in _in_file(path, path.relative_to(folder).as_posix())]


def _in_file(path: Path, name: str) -> list[Wait]:
    source, waits = path.read_text(), []

    def walk(node: ast.AST, function: str) -> None:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            function = f"{function}.{node.name}".lstrip(".")
        if _is_wait(node):
            waits.append(Wait(name, node.lineno, node.col_offset, ast.get_source_segment(source, node), function))
        for child in ast.iter_child_nodes(node):
            walk(child, function)

    walk(ast.parse(source), "")
    return waits


def _is_wait(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in METHODS


class _LeavesOut(ast.NodeTransformer):
    def __init__(self, wait: Wait) -> None:
        self.wait, self.n = wait, 0

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if _is_wait(node) and (node.lineno, node.col_offset) == (self.wait.line, self.wait.column):
            self.n += 1
            return node.func.value
        return node


def leave_out(wait: Wait) -> None:
    """Import the wait's module without the wait. It must not be imported yet."""
    module = "shardlab." + wait.file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    assert module not in sys.modules
    get_code = SourceFileLoader.get_code

    def without_it(loader, name):
        if name != module:
            return get_code(loader, name)
        path = loader.get_filename(name)
        change = _LeavesOut(wait)
        tree = change.visit(ast.parse(loader.get_source(name)))
        assert change.n == 1
        return compile(ast.fix_missing_locations(tree), path, "exec")

    SourceFileLoader.get_code = without_it
