"""How long a lesson is, and how long it may be: a reader finishes it in one sitting of 45 minutes.

The pace is that of somebody who reads a second language: 130 words a minute, ten lines of code a minute, and the
minutes that each exercise states. The time that the cells run is not in it.
"""

import ast
import re
from collections.abc import Iterator

from nbformat import NotebookNode

from shardcourse.lessons.cells import as_python, code_cells, markdown

WORDS_A_MINUTE, LINES_A_MINUTE = 130, 10
LIMITS = {
    "minutes": 45,
    "words": 2000,
    "lines of code": 220,
    "lines in the longest cell": 24,
    "names from the library": 12,
    "long brackets": 6,
}
_OURS = ("shardlab", "shardlive", "shardnext", "shardsim", "shardplan", "shardtrace", "shardcourse", "shardbench")
_LONG_BRACKET = re.compile(r"\([^()]{25,}\)")
_EXERCISE = re.compile(r"[Ee]xercise[^\n]{0,80}?(\d+) min")


def lengths(nb: NotebookNode) -> dict[str, int]:
    """Return the lesson's figures by the names in LIMITS."""
    text = markdown(nb)
    cells = [_lines(cell.source) for cell in code_cells(nb)]
    lines = sum(map(len, cells))
    exercises = sum(map(int, _EXERCISE.findall(text)))
    return {
        "minutes": round(len(text.split()) / WORDS_A_MINUTE + lines / LINES_A_MINUTE + exercises),
        "words": len(re.sub(r"```.*?```", "", text, flags=re.S).split()),
        "lines of code": lines,
        "lines in the longest cell": max(map(len, cells), default=0),
        "names from the library": len({name for cell in code_cells(nb) for name in _library_names(cell.source)}),
        "long brackets": len(_LONG_BRACKET.findall(text)),
    }


def length_problems(nb: NotebookNode) -> list[str]:
    """Check that the lesson keeps within LIMITS, and that it states its own minutes."""
    found = lengths(nb)
    problems = [f"{found[name]} {name}: at most {most}" for name, most in LIMITS.items() if found[name] > most]
    if f"About {found['minutes']} minutes" not in nb.cells[0].source:
        problems.append(f"the first cell does not say 'About {found['minutes']} minutes'")
    return problems


def _lines(source: str) -> list[str]:
    return [line for line in source.splitlines() if line.strip() and not line.strip().startswith("#")]


def _library_names(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(as_python(source))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in _OURS:
            yield from (alias.name for alias in node.names)
