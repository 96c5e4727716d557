"""A picture: an optimizer works through a file of states, chunk by chunk, with three buffers in memory."""

from shardcourse.figures.diagram import diagram
from shardcourse.figures.style import LessonFigure

CHUNKS = 5
_LOOKS = ("parameters", "optimizer states", "local gradients")  # of the three buffers
_BUFFERS = "ABC"


def draw() -> LessonFigure:
    with diagram(7.4, 2.7, x=(-3.0, 7.1), y=(-0.9, 4.0), title="States in a file: five chunks, three buffers") as d:
        d.text(3.5, -0.5, "time →")
        for row, work in enumerate(("drive reads", "CPU updates", "drive writes")):
            d.text(-0.2, row + 0.4, work, ha="right", weight="bold")
            for chunk in range(CHUNKS):
                buffer = chunk % 3
                d.box(chunk + row + 0.04, row, 0.92, 0.8, f"{chunk} {_BUFFERS[buffer]}", _LOOKS[buffer])
        d.text(3.5, 3.6, "a number is a chunk of the file, a letter and its colour are a buffer in memory", size=8)
    return d.figure
