"""The folded answers of a lesson, and the functions of its cells, as code to run."""

import ast
import re
import textwrap
from typing import Any

import nbformat

from shardcourse.lessons.cells import as_python, code_cells, markdown
from shardcourse.repository import ROOT


def answer(lesson: str, begins: str) -> str:
    """Return a lesson's first folded block of code that contains `begins`."""
    text = markdown(nbformat.read(ROOT / "course" / lesson, as_version=4))
    blocks = re.findall(r"```python\n(.*?)```", text, re.S)
    return textwrap.dedent(next(block for block in blocks if begins in block))


def defined(code: str, name: str, **names: Any) -> Any:
    """Run an answer's code, with the names that its notebook has, and return the function or class `name`."""
    scope = {"__name__": "answers"} | names
    exec(code, scope)
    return scope[name]


def definitions(lesson: str, old: str = "", new: str = "", **names: Any) -> dict[str, Any]:
    """Return what a lesson's cells import and define, with its constants, and nothing that they run.

    One text of the cells may be changed before. `names` are those that its constants need.
    """
    code = "\n".join(
        as_python(cell.source) for cell in code_cells(nbformat.read(ROOT / "course" / lesson, as_version=4))
    )
    assert old in code
    scope = {"__name__": "__main__", "seed": 0} | names
    for node in ast.parse(code.replace(old, new)).body:
        constant = isinstance(node, ast.Assign) and ast.unparse(node.targets[0]).strip("(")[0].isupper()
        if constant or isinstance(node, ast.Import | ast.ImportFrom | ast.ClassDef | ast.FunctionDef):
            exec(ast.unparse(node), scope)
    return scope
