"""A sum of ones in bf16 stops at 256: the next number is 258, and 257 is rounded back."""

from shardcourse.figures.diagram import diagram
from shardcourse.figures.style import PINK, TEXT, LessonFigure


def draw() -> LessonFigure:
    with diagram(7.4, 2.4, x=(251.2, 263.4), y=(0.2, 4.4)) as d:
        d.ax.plot([251.6, 262.6], [3, 3], color=TEXT, lw=1)
        for number in (252, 253, 254, 255, 256, 258, 260, 262):
            d.ax.plot([number, number], [2.75, 3.25], color=TEXT, lw=2)
            d.text(number, 3.7, str(number))
        for number in (252, 253, 254, 255):
            d.arrow((number, 2.65), (number + 1, 2.65), bend=-0.6)
            d.text(number + 0.5, 1.95, "+1")
        d.arrow((256, 2.65), (257, 2.3), bend=-0.5)
        d.text(256.35, 1.8, "+1")
        d.arrow((257, 2.3), (256.05, 2.72), color=PINK, bend=-0.5)
        d.text(257.25, 1.95, "257 is not a bf16 number:\nrounded back to 256", color=PINK, ha="left")
        d.text(251.6, 0.7, "every bf16 number from 252 to 262", ha="left", weight="bold")
    return d.figure
