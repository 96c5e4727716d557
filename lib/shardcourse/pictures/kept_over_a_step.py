"""Draw when four blocks' activations are in memory, from forward to backward, with and without checkpointing."""

from shardcourse.figures.diagram import Diagram, diagram
from shardcourse.figures.style import LessonFigure

BLOCKS = 4
FORWARD, BACKWARD = 1.0, 2.0  # widths: backward takes about twice as long
BAR, THIN = 0.72, 0.2  # heights of a block's activations, and of its input alone


def draw() -> LessonFigure:
    with diagram(7.4, 4.3, x=(-2.5, 18.6), y=(-1.5, 13.6)) as d:
        _step(d, 0, "Without checkpointing: a block's activations wait from its forward to its backward", False)
        _step(d, 7.4, "With checkpointing: only its input waits. Backward first runs the forward again", True)
        d.arrow((0, 13.3), (BLOCKS * (2 * FORWARD + BACKWARD), 13.3), "time")
        end = BLOCKS * (FORWARD + BACKWARD)
        d.box(end + 1.7, 1.6, 0.9, BAR, look="activations")
        d.text(end + 2.9, 1.6 + BAR / 2, "all activations\nof a block", ha="left", fontsize=8)
        d.box(end + 1.7, 3.3, 0.9, THIN, look="activations")
        d.text(end + 2.9, 3.3 + THIN / 2, "its input", ha="left", fontsize=8)
        d.box(end + 1.7, 4.4, 0.9, 0.9, look="gradients")
        d.text(end + 2.9, 4.85, "forward again", ha="left", fontsize=8)
    return d.figure


def _step(d: Diagram, top: float, title: str, recomputes: bool) -> None:
    """Draw a row of computations, and below it a bar for each block: when its activations are in memory."""
    d.text(-2.4, top - 1.05, title, ha="left", weight="bold")
    forward = [i * FORWARD for i in range(BLOCKS)]
    for i, x in enumerate(forward):
        d.box(x, top, FORWARD, 0.9, f"F{i + 1}", "computing")
    x = BLOCKS * FORWARD
    for i in reversed(range(BLOCKS)):
        row, start = top + 1.35 + i, x
        if recomputes:
            d.box(x, top, FORWARD, 0.9, f"F{i + 1}", "gradients")
            x += FORWARD
        d.box(x, top, BACKWARD, 0.9, f"B{i + 1}", "computing")
        x += BACKWARD
        d.text(-0.2, row + BAR / 2, f"block {i + 1}", ha="right", fontsize=8)
        if recomputes:
            d.box(forward[i], row + (BAR - THIN) / 2, start - forward[i], THIN, look="activations")
        else:
            start = forward[i]
        d.box(start, row, x - start, BAR, look="activations")
