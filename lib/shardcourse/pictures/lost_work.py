"""The time of a job: work, checkpoints, two failures, and the work that each failure takes with it."""

from shardcourse.figures.diagram import Diagram, diagram
from shardcourse.figures.style import PINK, LessonFigure

WORK, SAVE, RESTART = 4.0, 0.7, 0.9
TOP, HEIGHT = 1.6, 1.2


def draw() -> LessonFigure:
    """Draw one bar of time from left to right, in which the job fails twice and returns to its last checkpoint."""
    title = "A failure takes all work since the last checkpoint"
    with diagram(7.4, 2.7, x=(-0.3, 27.5), y=(-0.2, 5.5), title=title) as d:
        at = _interval(d, 0)
        d.text(WORK / 2, TOP - 0.45, "τ")
        d.text(WORK + SAVE / 2, TOP - 0.45, "C")
        d.text(WORK + SAVE / 2, TOP + HEIGHT + 0.4, "save", size=8.5)
        at = _interval(d, at)
        at = _failure(d, at, 3.0)
        d.text(at - RESTART / 2, TOP + HEIGHT + 0.4, "restart", size=8.5)
        at = _interval(d, at)
        at = _failure(d, at, 1.6)
        _interval(d, at)
        d.text(13.5, 5.1, "the job goes back to the state of its last checkpoint", color=PINK)
        d.arrow((25, 5.1), (27.2, 5.1), "time")
    return d.figure


def _interval(d: Diagram, at: float) -> float:
    """Draw work and the save after it; return the time at its end."""
    d.box(at, TOP, WORK, HEIGHT, "work", "parameters")
    d.box(at + WORK, TOP, SAVE, HEIGHT, "", "local gradients")
    return at + WORK + SAVE


def _failure(d: Diagram, at: float, lost: float) -> float:
    """Draw work that a failure takes, the way back to the checkpoint, and the restart; return the time at its end."""
    failed = at + lost
    d.box(at, TOP, lost, HEIGHT, "lost", "gradients")
    d.box(failed, TOP, RESTART, HEIGHT)
    d.text(failed, TOP - 0.45, "×", size=17, color=PINK, weight="bold")
    d.text(failed, TOP - 1.2, "failure", color=PINK)
    d.arrow((failed, TOP + HEIGHT + 0.8), (at - SAVE / 2, TOP + HEIGHT + 0.8), color=PINK, bend=-0.3)
    return failed + RESTART
