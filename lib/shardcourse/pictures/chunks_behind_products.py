"""An all_gather and its product: one after the other, and in chunks that travel behind products. Lesson 23."""

from shardcourse.figures.diagram import Diagram, diagram
from shardcourse.figures.style import LessonFigure

N, HOP, PRODUCT = 4, 2.4, 3.0


def draw() -> LessonFigure:
    with diagram(7.4, 3.4, x=(-4.3, 20.4), y=(-1.4, 10.4)) as d:
        _lanes(d, 0, "gather, then multiply")
        for i in range(N):
            if i < N - 1:
                d.box(i * HOP, 1.3, HOP, 1, f"brings {N - 1 - i}", "exposed")
            d.box((N - 1) * HOP + i * PRODUCT, 0, PRODUCT, 1, f"chunk {i}", "computing")
        _lanes(d, 5, "in a ring")
        for i in range(N):
            if i < N - 1:
                d.box(i * PRODUCT, 6.3, HOP, 1, f"brings {N - 1 - i}", "overlapped")
            d.box(i * PRODUCT, 5, PRODUCT, 1, f"chunk {-i % N}", "computing")
        d.arrow((N * PRODUCT + 0.2, 5.5), ((N - 1) * HOP + N * PRODUCT, 5.5), "time saved")
        d.box(0, 9, 1, 0.9, "", "exposed")
        d.text(1.4, 9.45, "exposed: the rank waits", ha="left")
        d.box(9.6, 9, 1, 0.9, "", "overlapped")
        d.text(11, 9.45, "overlapped by a product", ha="left")
    return d.figure


def _lanes(d: Diagram, y: float, title: str) -> None:
    d.text(-4.2, y - 0.75, title, ha="left", weight="bold")
    d.text(-0.3, y + 0.5, "rank 0", ha="right")
    d.text(-0.3, y + 1.8, "network", ha="right")
