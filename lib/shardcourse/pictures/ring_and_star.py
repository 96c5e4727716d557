"""Lesson 2a: a sum through rank 0 beside a sum around a ring, with what each link carries."""

from shardcourse.figures.diagram import Box, Diagram, diagram
from shardcourse.figures.style import BLUE, ORANGE, LessonFigure

_WIDE, _HIGH = 1.5, 0.8


def draw() -> LessonFigure:
    with diagram(7.4, 3.0, x=(0, 15), y=(0, 6.4), title="Four ranks add up b bytes each") as d:
        _through_rank_0(d)
        d.line((7.3, 0.2), (7.3, 6.2))
        _around_a_ring(d)
    return d.figure


def _rank(d: Diagram, number: int, x: float, y: float) -> Box:
    return d.box(x, y, _WIDE, _HIGH, f"rank {number}", "computing")


def _through_rank_0(d: Diagram) -> None:
    d.text(0.2, 0.3, "Through rank 0", ha="left", weight="bold")
    top = _rank(d, 0, 2.7, 1.1)
    for number, x in ((1, 0.4), (2, 2.7), (3, 5.0)):
        low = _rank(d, number, x, 4.2)
        d.arrow(
            (low.top[0] - 0.15, low.top[1]), (top.bottom[0] - 0.15 + (number - 2) * 0.5, top.bottom[1]), color=ORANGE
        )
        d.arrow(
            (top.bottom[0] + 0.15 + (number - 2) * 0.5, top.bottom[1]), (low.top[0] + 0.15, low.top[1]), color=ORANGE
        )
    d.text(1.45, 3.0, "b", color=ORANGE)
    d.text(5.45, 3.0, "b", color=ORANGE)
    d.text(3.45, 5.8, "rank 0 receives three tensors and sends three", size=8.5)


def _around_a_ring(d: Diagram) -> None:
    d.text(7.8, 0.3, "Around a ring, the first of six hops", ha="left", weight="bold")
    ranks = [_rank(d, n, x, y) for n, x, y in ((0, 8.6, 1.1), (1, 12.4, 1.1), (2, 12.4, 4.2), (3, 8.6, 4.2))]
    d.arrow(ranks[0].right, ranks[1].left, "b/4", color=BLUE)
    d.arrow(ranks[1].bottom, ranks[2].top, color=BLUE)
    d.arrow(ranks[2].left, ranks[3].right, "b/4", color=BLUE)
    d.arrow(ranks[3].top, ranks[0].bottom, color=BLUE)
    d.text(ranks[1].bottom[0] + 0.2, 3.05, "b/4", ha="left", color=BLUE)
    d.text(ranks[0].bottom[0] - 0.2, 3.05, "b/4", ha="right", color=BLUE)
    d.text(11.2, 5.8, "every link carries the same, at the same time", size=8.5)
