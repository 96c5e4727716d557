"""Two replicas on a slow link: plain data parallel, local steps, and local steps whose messages are overlapped."""

from shardcourse.figures.diagram import Diagram, diagram
from shardcourse.figures.style import TEXT, LessonFigure

STEP, SEND = 1.0, 2.2
WAYS = ("every step", "every 4 steps", "every 8 steps,\nin 4 parts")


def draw() -> LessonFigure:
    """Draw a row of steps (grey) and messages for each way, on one axis of time."""
    with diagram(7.4, 2.9, x=(-4.6, 17.4), y=(0, 7.4), title="The same link, used in three ways") as d:
        _row(d, 0)
        _row(d, 1)
        for i in range(16):
            d.box(i * STEP, 4.75, STEP, 0.7, "", "computing")
            if i % 2:
                d.box((i + 1) * STEP, 5.5, SEND / 4, 0.45, "", "overlapped")
        for i, way in enumerate(WAYS):
            d.text(-0.3, 1.1 + 2 * i, way, ha="right")
        d.arrow((11.5, 6.8), (16.5, 6.8), "time", color=TEXT)
        d.box(-4.4, 6.45, 0.8, 0.6, "", "computing")
        d.text(-3.3, 6.75, "step", ha="left")
        d.box(-0.9, 6.45, 0.8, 0.6, "", "exposed")
        d.text(0.2, 6.75, "exposed message", ha="left")
        d.box(5.1, 6.45, 0.8, 0.6, "", "overlapped")
        d.text(6.2, 6.75, "overlapped message", ha="left")
    return d.figure


def _row(d: Diagram, number: int) -> None:
    steps = 1 if number == 0 else 4
    x = 0.0
    while x + steps * STEP + SEND < 16.8:
        for _ in range(steps):
            d.box(x, 0.75 + 2 * number, STEP, 0.7, "", "computing")
            x += STEP
        d.box(x, 0.75 + 2 * number, SEND, 0.7, "", "exposed")
        x += SEND
