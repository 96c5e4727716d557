"""The folded answers of a lesson, as code to run."""

import re
import textwrap
from typing import Any

import nbformat

from shardcourse.lessons.cells import markdown
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
