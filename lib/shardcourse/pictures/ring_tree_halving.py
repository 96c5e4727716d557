"""Lesson 2b: the partners of four ranks, step by step, in a ring, a tree, and recursive halving and doubling."""

from shardcourse.figures.diagram import Diagram, diagram
from shardcourse.figures.style import BLUE, ORANGE, TEXT, LessonFigure

_RANKS = 4
_RING = ([("b/4", [(r, (r + 1) % _RANKS) for r in range(_RANKS)])]) * 6
_TREE = [("b", [(2, 0), (3, 1)]), ("b", [(1, 0)]), ("b", [(0, 1)]), ("b", [(0, 2), (1, 3)])]
_HALVING = [
    ("b/2", [(0, 2), (2, 0), (1, 3), (3, 1)]),
    ("b/4", [(0, 1), (1, 0), (2, 3), (3, 2)]),
    ("b/4", [(0, 1), (1, 0), (2, 3), (3, 2)]),
    ("b/2", [(0, 2), (2, 0), (1, 3), (3, 1)]),
]


def draw() -> LessonFigure:
    with diagram(
        7.4, 4.6, x=(-1.3, 12.6), y=(-0.4, 12.6), title="Who sends to whom: the arrows of one step leave together"
    ) as d:
        _steps(d, 0.2, "ring: 6 steps, 1.5 b sent by each rank", _RING, BLUE)
        _steps(d, 4.5, "tree: 4 steps, up to 2 b sent, some ranks idle", _TREE, ORANGE)
        _steps(d, 8.8, "halving and doubling: 4 steps, 1.5 b sent by each rank", _HALVING, TEXT)
    return d.figure


def _steps(d: Diagram, top: float, name: str, steps: list, color: str) -> None:
    """Draw a row for each rank, a column for each step, and an arrow for each message."""
    d.text(-1.2, top, name, ha="left", weight="bold")
    for rank in range(_RANKS):
        y = top + 0.85 + 0.75 * rank
        d.text(-0.2, y, f"rank {rank}", size=8, ha="right")
        d.line((0, y), (12.4, y))
    for i, (size, messages) in enumerate(steps):
        x = 0.5 + 2.0 * i
        d.text(x + 0.15 * len(messages), top + 0.45, size, size=8, color=color)
        for k, (sender, receiver) in enumerate(messages):
            at = x + 0.3 * k
            d.arrow((at, top + 0.85 + 0.75 * sender), (at + 0.25, top + 0.85 + 0.75 * receiver), color=color)
