"""The life of a job: started on four ranks, killed, resumed on three, stopped, finished on two. Lesson 16."""

from shardcourse.figures.diagram import diagram
from shardcourse.figures.style import PINK, TEXT, LessonFigure

TOP, HEIGHT, GAP = 1.5, 0.62, 0.2


def draw() -> LessonFigure:
    """Draw a row for each rank over the steps of three jobs, and the arrow back to the checkpoint after the kill."""
    with diagram(7.4, 3.5, x=(-3.8, 51), y=(0, 6.2), title="One run, three jobs") as d:
        for rank in range(4):
            d.text(-0.6, _y(rank) + HEIGHT / 2, f"rank {rank}", ha="right")
            d.box(0, _y(rank), 20, HEIGHT, "steps 1 to 20", "parameters")
            d.box(20, _y(rank), 4, HEIGHT, "lost", "gradients")
        for rank in range(3):
            d.box(26.5, _y(rank), 10, HEIGHT, "21 to 30", "optimizer states")
        for rank in range(2):
            d.box(39, _y(rank), 10, HEIGHT, "31 to 40", "local gradients")
        bottom = _y(4)
        for x, words in ((20, "save"), (36.5, "SIGTERM:\nsave, exit 0"), (49, "save,\nsample")):
            d.line((x, TOP - 0.15), (x, bottom + 0.1))
            d.text(x, bottom + 0.2, words, va="top")
        d.text(25.1, _y(3) + HEIGHT / 2, "×", size=17, color=PINK, weight="bold")
        d.text(25.2, bottom + 0.2, "SIGKILL", color=PINK, va="top")
        d.arrow((25.5, TOP - 0.3), (20.3, TOP - 0.3), color=PINK, bend=0.35)
        d.text(22.9, 0.45, "back to the last save", color=PINK)
        for x, words in ((10, "4 ranks"), (31.5, "3 ranks"), (44, "2 ranks")):
            d.text(x, TOP - 0.35, words)
        d.arrow((43, 0.5), (49.5, 0.5), "time", color=TEXT)
    return d.figure


def _y(rank: int) -> float:
    return TOP + rank * (HEIGHT + GAP)
