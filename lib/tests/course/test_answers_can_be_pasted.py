"""A folded answer runs where it is pasted: each name that it uses is its own, or one of its notebook's cells'."""

import ast
import builtins
import re
import textwrap

import nbformat
import pytest

from shardcourse.lessons.cells import as_python, code_cells, markdown
from shardcourse.repository import ROOT

LESSONS = sorted((ROOT / "course").glob("[0-9]*.ipynb"))


def defined_and_used(code: str) -> tuple[set[str], set[str]]:
    """Return the names that code binds anywhere, and those that it reads."""
    bound, read = set(), set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Name):
            (read if isinstance(node.ctx, ast.Load) else bound).add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            bound.add(node.name)
        elif isinstance(node, ast.arg):
            bound.add(node.arg)
        elif isinstance(node, ast.alias):
            bound.add((node.asname or node.name).partition(".")[0])
    return bound, read


def answers(text: str) -> list[str]:
    """Return the complete programs among a lesson's folded answers."""
    folded = re.findall(r"<details>(.*?)</details>", text, re.S)
    blocks = [textwrap.dedent(block) for part in folded for block in re.findall(r"```python\n(.*?)```", part, re.S)]
    return [block for block in blocks if "..." not in block]


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.stem)
def test_an_answer_uses_only_names_that_are_there(lesson):
    notebook = nbformat.read(lesson, as_version=4)
    there = set(dir(builtins)).union(*(defined_and_used(as_python(cell.source))[0] for cell in code_cells(notebook)))
    for answer in answers(markdown(notebook)):
        bound, read = defined_and_used(answer)
        assert not read - bound - there, f"the answer that begins with {answer.strip().splitlines()[0]!r}"


def test_a_name_that_is_not_there_is_found():
    bound, read = defined_and_used("class A:\n    @torch.no_grad()\n    def f(self, x):\n        return x + self.y")
    assert read - bound == {"torch"}
