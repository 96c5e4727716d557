"""A picture: what DDP sends in a training step, and in the first and second evaluation forward that follow it."""

from shardcourse.figures.diagram import diagram
from shardcourse.figures.style import LessonFigure


def draw() -> LessonFigure:
    title = "Who decides that a forward broadcasts buffers? The previous forward"
    with diagram(7.4, 2.7, x=(-2.6, 17.2), y=(-0.9, 4.6), title=title) as d:
        d.text(-0.3, 0.5, "computing", ha="right", weight="bold")
        d.text(-0.3, 2.9, "messages", ha="right", weight="bold")
        for x, width, words in (
            (0, 3.2, "train forward"),
            (3.2, 4.2, "backward"),
            (8.4, 3.8, "eval forward 1"),
            (13, 3.8, "eval forward 2"),
        ):
            d.box(x, 0, width, 1, words, "computing")
        d.box(0, 2.4, 2.4, 1, "buffers", "parameters")
        for x in (4.4, 6.0):
            d.box(x, 2.4, 1.4, 1, "bucket", "local gradients")
        d.box(8.4, 2.4, 2.4, 1, "buffers", "parameters")
        d.box(13, 2.4, 2.4, 1, "nothing", "empty")
        d.text(9.6, 3.9, "if only rank 0 evaluates, the job hangs here", size=8)
    return d.figure
