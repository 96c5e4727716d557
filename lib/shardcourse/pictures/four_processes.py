"""A picture: a notebook starts four ranks, each with its own memory, and the ranks send each other tensors."""

from shardcourse.figures.diagram import diagram
from shardcourse.figures.style import BLUE, ORANGE, LessonFigure


def draw() -> LessonFigure:
    with diagram(7.4, 3.4, x=(0, 22), y=(0, 9.2), title="launch(fn, 4): five processes, five memories") as d:
        d.box(0.1, 1.6, 4.5, 6)
        d.text(2.3, 2.3, "notebook", weight="bold")
        d.box(0.6, 3.2, 3.4, 1.4, "its variables", "computing")
        d.text(2.3, 6.0, "starts the ranks\nand waits for them,\nbut is not a rank", size=8)
        for rank in range(4):
            top = 0.2 + 2.3 * rank
            d.box(10, top, 7.4, 1.8)
            d.text(11.3, top + 0.9, f"rank {rank}", weight="bold")
            d.box(12.8, top + 0.3, 4.2, 1.2, "its variables", "computing")
            d.arrow((4.7, 3.4), (9.9, top + 0.6), color=BLUE)
            d.arrow((9.9, top + 1.2), (4.7, 5.8), color=ORANGE)
            d.arrow((17.4, top + 0.9), (18.5, top + 0.9))
            d.arrow((18.5, top + 0.9), (17.4, top + 0.9))
        d.text(6.6, 0.9, "a copy of fn\nand its arguments", color=BLUE, size=8)
        d.text(6.6, 8.3, "what fn returns", color=ORANGE, size=8)
        d.box(18.5, 0.2, 0.2, 8.7, look="computing")
        d.text(18.9, 4.55, "tensors, from\nany rank to\nany rank", size=8, ha="left")
    return d.figure
