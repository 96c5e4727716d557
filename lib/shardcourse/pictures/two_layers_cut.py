"""Two layers cut over two ranks: columns, then rows, and where the two all_reduces sit. Lesson 15a."""

from shardcourse.figures.diagram import diagram
from shardcourse.figures.style import LessonFigure

HEADS = {
    1.5: "whole input",
    8: "W1: half of\nits columns",
    15: "half of the\nhidden layer",
    22: "W2: half\nof its rows",
    27.1: "one term\nof a sum",
}


def draw() -> LessonFigure:
    with diagram(7.4, 3.3, x=(-2.4, 29.4), y=(-2.6, 10.2)) as d:
        for x, words in HEADS.items():
            d.text(x, -1.3, words)
        for rank, y in enumerate((0.3, 6.3)):
            d.text(-0.6, y + 1.5, f"rank {rank}", ha="right", weight="bold")
            x = d.box(0, y, 3, 3, "x", "activations")
            d.box(6, y, 4, 3, look="empty")
            d.box(6 + 2 * rank, y, 2, 3, look="parameters")
            hidden = d.box(13.5, y, 3, 3, "silu\n(x W1)", "activations")
            d.box(20, y - 0.6, 4, 4.2, look="empty")
            d.box(20, y - 0.6 + 2.1 * rank, 4, 2.1, look="parameters")
            term = d.box(26, y, 2.7, 3, "y", "activations")
            d.arrow(x.right, (6, y + 1.5))
            d.arrow((10, y + 1.5), hidden.left)
            d.arrow(hidden.right, (20, y + 1.5))
            d.arrow((24, y + 1.5), term.left)
        for x in (1.5, 27.3):
            d.arrow((x, 4.6), (x, 3.3))
            d.arrow((x, 4.4), (x, 6.3))
        d.text(2.1, 4.8, "backward: all_reduce\nof x's gradient", ha="left", weight="bold")
        d.text(26.7, 4.8, "forward: all_reduce\nof y", ha="right", weight="bold")
    return d.figure
