"""Lesson 24: one tensor on two ranks, in five types; and the type of its gradient."""

from shardcourse.figures.diagram import diagram
from shardcourse.figures.style import LessonFigure

_TYPES = {  # name: what ranks 0 and 1 hold, what that is as a whole, the gradient's type
    "R\nreplicated": ("A", "A", "A", "P"),
    "I\ninvariant": ("A", "A", "A", "I"),
    "V\nvarying": ("A", "B", "no claim", "V"),
    "P\npartial": ("A", "B", "A + B", "R"),
    "S(0)\nsharded": ("A", "B", "A above B", "S(0)"),
}


def draw() -> LessonFigure:
    with diagram(7.4, 3.3, x=(-4.6, 25.2), y=(-2.2, 9.2)) as d:
        for y, words in zip((1.0, 3.2, 5.9, 8.0), ("rank 0", "rank 1", "as a whole", "gradient"), strict=True):
            d.text(-0.6, y, words, ha="right", weight="bold")
        for i, (name, (first, second, whole, gradient)) in enumerate(_TYPES.items()):
            x = 5.1 * i
            d.text(x + 2, -1.2, name, weight="bold")
            d.box(x, 0.1, 4, 1.8, first, "parameters")
            d.box(x, 2.3, 4, 1.8, second, "parameters" if first == second else "gathered")
            d.text(x + 2, 5.9, whole)
            d.box(x + 0.9, 7.1, 2.2, 1.8, gradient, "gradients")
        d.line((-4.4, 4.9), (25, 4.9))
    return d.figure
