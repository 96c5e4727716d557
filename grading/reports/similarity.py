"""Find submissions that were probably not written independently: runs of syntax that two share and few others have.

Everything that can be changed without understanding is left out: names, constants, comments, annotations, docstrings,
layout, the order of functions and cells. PyTorch's own names stay, since nobody can rename them. Code that the lab
itself gives, and code that most of a class writes, does not count.

Similarity is no proof: show both to a person. Source: Schleimer, Wilkerson & Aiken 2003, "Winnowing" (Moss), without
its sampling, which a class does not need.
"""

import ast
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import combinations

import torch
import torch.distributed as dist
from nbformat import NotebookNode
from torch import nn

from grading.gradebook.limited import LimitError, limited

RUN = 12  # nodes of syntax in a row
LONGEST_S = 2  # of computing for a submission, which may nest its syntax; a lab's solution takes a tenth of a second
FEWEST_RUNS = 30  # a submission with fewer runs is not compared
COMMON = 0.5  # runs that a larger part of the class has do not count, unless at most FEWEST_STUDENTS have them
FEWEST_STUDENTS = 6
_LASTING = {name for of in (torch, torch.Tensor, nn, nn.Module, dist) for name in dir(of)}


@dataclass(frozen=True)
class Pair:
    """Two students: `share` of the smaller one's runs are also in the other's."""

    first: str
    second: str
    share: float


def alike(notebooks: dict[str, NotebookNode], released: NotebookNode, least: float) -> list[Pair]:
    """Return pairs of students, the most alike first, that share `least` or more."""
    given = _runs(released)
    runs = {student: _limited_runs(nb) - given for student, nb in notebooks.items()}
    seen = Counter(run for own in runs.values() for run in own)
    most = max(COMMON * len(runs), FEWEST_STUDENTS)
    own = {student: {run for run in found if seen[run] <= most} for student, found in runs.items()}
    comparable = [student for student in own if len(own[student]) >= FEWEST_RUNS]
    pairs = [_pair(a, b, own) for a, b in combinations(comparable, 2)]
    return sorted((p for p in pairs if p.share >= least), key=lambda p: -p.share)


def _pair(a: str, b: str, own: dict[str, set[int]]) -> Pair:
    shared = len(own[a] & own[b])
    return Pair(a, b, shared / min(len(own[a]), len(own[b])))


def _limited_runs(nb: NotebookNode) -> set[int]:
    """Return the runs of a submission; none if finding them takes too long, or ends Python."""
    try:
        return limited(_runs, nb, cpu_s=LONGEST_S)
    except LimitError:
        return set()


def _runs(nb: NotebookNode) -> set[int]:
    """Return hashes of the runs of syntax in each function, and in the code outside functions."""
    found: set[int] = set()
    for cell in nb.cells:
        if cell.cell_type == "code":
            with suppress(SyntaxError, ValueError, RecursionError, MemoryError):  # what can't be parsed is left out
                for piece in _pieces(cell.source):
                    words = [word for node in piece for word in _words(node)]
                    found.update(hash(tuple(words[i : i + RUN])) for i in range(len(words) - RUN + 1))
    return found


def _pieces(source: str) -> Iterator[list[ast.AST]]:
    tree = ast.parse(source)
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    for function in functions:
        yield function.body
    yield [node for node in tree.body if not isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef)]


def _words(node: ast.AST) -> Iterator[str]:
    """Yield the kinds of a node and of those below it, in order."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):  # a docstring
        return
    if isinstance(node, ast.FunctionDef | ast.expr_context | ast.arguments | ast.Import | ast.ImportFrom):
        return
    if isinstance(node, ast.AnnAssign) and node.value:
        node = ast.Assign([node.target], node.value)
    name = next((getattr(node, field) for field in ("attr", "arg", "id") if hasattr(node, field)), None)
    yield type(node).__name__ + (f" {name}" if name in _LASTING else "")
    for child in ast.iter_child_nodes(node):
        yield from _words(child)
