"""A spike in the loss, and the links of the step in which it begins: each link has one check."""

import numpy as np

from shardcourse.figures.diagram import diagram
from shardcourse.figures.style import PINK, TEXT, LessonFigure

LINKS = (  # the link, its look, what to check
    ("batch", "empty", "what is in it?"),
    ("loss of\neach rank", "computing", "is one rank\nout of line?"),
    ("gradients", "local gradients", "all finite?"),
    ("their mean", "gradients", "is its norm\nas usual?"),
    ("update", "optimizer states", "is its state\ncomplete?"),
    ("weights", "parameters", "equal to a\nright run?"),
)
SPIKE = 6.0


def draw() -> LessonFigure:
    """Return the picture: above the loss with a spike, below what happens in that one step, link by link."""
    with diagram(7.4, 3.1, x=(0, 12.6), y=(0, 6.4)) as d:
        steps = np.linspace(0.4, 12.2, 240)
        falls = 1.9 - 1.3 * np.exp(-steps / 3)
        d.ax.plot(steps, falls - 1.25 * np.exp(-np.abs(steps - SPIKE) / 0.18), color=TEXT, lw=1.6)
        d.text(1.6, 0.45, "loss", ha="left")
        d.text(12.2, 2.5, "steps", ha="right")
        d.text(SPIKE + 0.4, 0.75, "1. which step is the first that differs?", ha="left", color=PINK, weight="bold")
        d.arrow((SPIKE, 2.1), (SPIKE, 3.3), color=PINK)
        d.text(SPIKE + 0.4, 2.95, "2. which link of this step?", ha="left", color=PINK, weight="bold")
        boxes = []
        for i, (words, look, check) in enumerate(LINKS):
            x = 0.2 + 2.1 * i
            boxes.append(d.box(x, 3.6, 1.65, 1.2, words, look))
            d.text(x + 0.825, 5.7, check)
        for one, following in zip(boxes, boxes[1:], strict=False):
            d.arrow(one.right, following.left)
    return d.figure
