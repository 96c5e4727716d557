"""A picture: what travels between GPU, host and drive in the three phases of a step."""

from shardcourse.figures.diagram import diagram
from shardcourse.figures.style import BLUE, ORANGE, LessonFigure


def draw() -> LessonFigure:
    with diagram(7.4, 3.9, x=(-1.7, 15.1), y=(-0.6, 9.9), title="What travels in a step") as d:
        for start, name in ((0, "forward"), (5, "backward"), (10, "optimizer step")):
            d.text(start + 2.5, -0.2, name, weight="bold")
        for x in (5, 10):
            d.line((x, -0.5), (x, 9.0))
        for y, name in ((1.0, "GPU"), (4.5, "host"), (8.0, "drive")):
            d.text(-1.6, y, name, ha="left", weight="bold")
        d.box(0.2, 0.4, 4.6, 1.2, "computes", "computing")
        d.box(5.2, 0.4, 4.6, 1.2, "computes", "computing")
        d.box(10.2, 0.4, 4.6, 1.2, "new parameters", "parameters")
        d.box(0.2, 3.9, 4.6, 1.2, "parameters *", "parameters")
        d.box(5.2, 3.9, 2.2, 1.2, "parameters *", "parameters")
        d.box(7.6, 3.9, 2.2, 1.2, "gradients", "gradients")
        d.box(10.2, 3.9, 4.6, 1.2, "AdamW", "computing")
        d.box(10.2, 7.4, 4.6, 1.2, "optimizer states **", "optimizer states")
        d.arrow((2.5, 3.8), (2.5, 1.7), color=BLUE)
        d.arrow((6.3, 3.8), (6.3, 1.7), color=BLUE)
        d.arrow((8.7, 1.7), (8.7, 3.8), color=ORANGE)
        d.arrow((12.5, 3.8), (12.5, 1.7), color=BLUE)
        d.arrow((11.6, 7.3), (11.6, 5.2))
        d.arrow((13.4, 5.2), (13.4, 7.3))
        d.text(11.4, 6.2, "read", ha="right")
        d.text(13.6, 6.2, "written", ha="left")
        d.text(
            -1.6,
            9.5,
            "* if parameters are kept on the host; then AdamW sends none back     ** if the host is too small for them",
            size=8,
            ha="left",
        )
    return d.figure
