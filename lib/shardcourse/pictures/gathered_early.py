"""Forward of three units, without prefetch and with it: which gathers overlap computation. Lesson 5b."""

from shardcourse.figures.diagram import Diagram, diagram
from shardcourse.figures.style import LessonFigure

GATHER, COMPUTE = 3.0, 4.0  # how long a unit's all_gather and its forward take
UNITS = 3


def draw() -> LessonFigure:
    with diagram(7.4, 3.6, x=(-4.3, 22), y=(-1.4, 10.4)) as d:
        _lanes(d, 0, "without prefetch")
        t = 0.0
        for i in range(UNITS):
            d.box(t, 1.3, GATHER, 1, f"gather {i}", "exposed")
            d.box(t + GATHER, 0, COMPUTE, 1, f"forward {i}", "computing")
            t += GATHER + COMPUTE
        _lanes(d, 5, "with prefetch")
        d.box(0, 6.3, GATHER, 1, "gather 0", "exposed")
        for i in range(UNITS):
            d.box(GATHER + i * COMPUTE, 5, COMPUTE, 1, f"forward {i}", "computing")
            if i + 1 < UNITS:
                d.box(GATHER + i * COMPUTE, 6.3, GATHER, 1, f"gather {i + 1}", "overlapped")
        d.arrow((GATHER + UNITS * COMPUTE + 0.2, 5.5), (t, 5.5), "time saved")
        d.box(0, 9, 1, 0.9, "", "exposed")
        d.text(1.4, 9.45, "exposed: the rank waits", ha="left")
        d.box(11, 9, 1, 0.9, "", "overlapped")
        d.text(12.4, 9.45, "overlapped by computation", ha="left")
    return d.figure


def _lanes(d: Diagram, y: float, title: str) -> None:
    d.text(-4.2, y - 0.75, title, ha="left", weight="bold")
    d.text(-0.3, y + 0.5, "computing", ha="right")
    d.text(-0.3, y + 1.8, "network", ha="right")
