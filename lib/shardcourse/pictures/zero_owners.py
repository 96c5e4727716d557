"""Memory of each of four ranks after backward, under DDP, ZeRO-1 and ZeRO-2: lesson 4."""

from shardcourse.figures.diagram import Diagram, diagram
from shardcourse.figures.style import LessonFigure

N = 4
ROWS = ("parameters", "gradients", "optimizer states")  # of a rank, top to bottom
WHOLE = {"DDP": ROWS, "ZeRO-1": ROWS[:2], "ZeRO-2": ROWS[:1]}


def draw() -> LessonFigure:
    with diagram(7.4, 3.3, x=(-1.5, 28.4), y=(-1.3, 9.2)) as d:
        for i, row in enumerate(ROWS):
            d.text(3.1, 1 + 2.4 * i, row.replace(" ", "\n"), ha="right")
        for i, (stage, whole) in enumerate(WHOLE.items()):
            _stage(d, 3.6 + 8.5 * i, stage, whole)
        d.text(15.6, 8.6, "full: all elements on this rank      dashed: not on this rank")
    return d.figure


def _stage(d: Diagram, x: float, stage: str, whole: tuple[str, ...]) -> None:
    d.text(x + 3.75, -0.8, stage, weight="bold")
    for rank in range(N):
        left = x + 1.95 * rank
        for i, row in enumerate(ROWS):
            if row in whole:
                d.box(left, 2.4 * i, 1.65, 2, look=row)
            else:
                d.box(left, 2.4 * i, 1.65, 2, look="empty")
                d.box(left, 2.4 * i + 2 / N * rank, 1.65, 2 / N, look=row)
        d.text(left + 0.82, 7.5, f"rank {rank}", size=8)
