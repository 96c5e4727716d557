"""Lesson 19: two ranks with two tokens and two experts each: rows travel to their experts, and the results back."""

from shardcourse.figures.diagram import Diagram, diagram
from shardcourse.figures.style import LessonFigure

_LOOKS = "parameters", "gradients"  # of rows whose expert is on rank 0, on rank 1
_ROWS = (("a0", "b0", "b1", "a2"), ("c0", "d0", "d2", "c3"))  # of each rank, sorted by expert
_EXPERTS = (("a0", "b0", "c0", "d0", "b1"), ("a2", "d2", "c3"))  # what each rank computes, by expert
_HEADS = {0.9: "tokens", 4.9: "rows, sorted\nby expert", 12.2: "experts", 19.5: "results", 23.5: "weighted\nsums"}


def draw() -> LessonFigure:
    with diagram(7.4, 3.5, x=(-2.6, 24.8), y=(-1.9, 12.2)) as d:
        for x, words in _HEADS.items():
            d.text(x, -1.0, words)
        d.text(8.6, -1.0, "dispatch", weight="bold")
        d.text(15.8, -1.0, "combine", weight="bold")
        for rank in range(2):
            _rank(d, rank, 5.9 * rank)
        for rank, rows in enumerate(_ROWS):
            for i, row in enumerate(rows):
                y = 5.9 * rank + 0.55 + 1.1 * i
                to = int(row[1]) // 2
                there = 5.9 * to + 0.5 + _EXPERTS[to].index(row)
                d.arrow((5.7, y), (10.3, there))
                d.arrow((14.0, there), (18.7, y))
        d.text(11.8, 11.6, "a0: the row of token a for expert 0. The colour is that of the rank with this expert.")
    return d.figure


def _rank(d: Diagram, rank: int, y: float) -> None:
    """Draw one rank: its tokens, its rows, its experts, and what comes back."""
    d.text(-0.4, y + 2.2, f"rank {rank}", ha="right", weight="bold")
    for i, token in enumerate("abcd"[2 * rank : 2 * rank + 2]):
        d.box(0, y + 0.4 + 2.2 * i, 1.8, 1.4, token)
        d.box(22.6, y + 0.4 + 2.2 * i, 1.8, 1.4, token)
    for i, row in enumerate(_ROWS[rank]):
        for x in (4.1, 18.7):
            d.box(x, y + 1.1 * i, 1.6, 1.0, row, _LOOKS[int(row[1]) // 2])
    for i, row in enumerate(_EXPERTS[rank]):
        d.box(10.3, y + i, 3.7, 0.95, f"expert {row[1]}: {row[0]}", _LOOKS[rank])
    d.arrow((1.8, y + 2.2), (4.1, y + 2.2))
    d.arrow((20.3, y + 2.2), (22.6, y + 2.2))
