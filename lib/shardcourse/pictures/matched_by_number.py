"""Four ranks of one process group: collectives are matched by their number, and one rank makes another call."""

from shardcourse.figures.diagram import diagram
from shardcourse.figures.style import PINK, LessonFigure

CALLS = ("#1", "#2", "#3")
LEFT, WIDTH = (1.5, 4.7, 8.8), 2.8  # of the boxes
ODD_RANK = 2


def draw() -> LessonFigure:
    """Return the picture: in calls 1 and 2 all ranks agree; in call 3 rank 2 calls something else, and all wait."""
    with diagram(7.4, 3.0, x=(0, 12.6), y=(-0.4, 5.9)) as d:
        for x, call in zip(LEFT, CALLS, strict=True):
            d.text(x + WIDTH / 2, 0.1, f"call {call}", weight="bold")
        for rank in range(4):
            y = 0.6 + rank
            d.text(0.7, y + 0.35, f"rank {rank}", weight="bold" if rank == ODD_RANK else "normal")
            for x in LEFT:
                words = "reduce_scatter" if x == LEFT[-1] and rank != ODD_RANK else "all_gather"
                look = "local gradients" if words == "reduce_scatter" else "gathered"
                d.box(x, y, WIDTH, 0.7, words, look)
        for x in LEFT[:-1]:
            d.text(x + WIDTH / 2, 5.2, "all ranks agree:\nthe call ends")
        d.text(LEFT[-1] + WIDTH / 2, 5.2, "rank 2 calls something else:\nall four wait", color=PINK, weight="bold")
        d.line((7.85, -0.3), (7.85, 5.7))
    return d.figure
