"""Four matrices on four ranks: cut at rest; whole everywhere, or each whole on its owner, for the update. Lesson 21."""

from shardcourse.figures.diagram import Diagram, diagram
from shardcourse.figures.style import LessonFigure

N = 4
HEADS = (
    "at rest: a quarter\nof every matrix",
    "every rank computes\nevery update",
    "each rank computes\nfor its own matrix",
)
MESSAGES = ("", "all_gather of each matrix", "shards to the owner, results back")


def draw() -> LessonFigure:
    with diagram(7.4, 3.7, x=(-2.2, 30), y=(-2.2, 10.8)) as d:
        for matrix in range(N):
            d.text(-0.3, 2 * matrix + 0.8, "ABCD"[matrix], ha="right", weight="bold")
        for panel, (head, messages) in enumerate(zip(HEADS, MESSAGES, strict=True)):
            x = 0.3 + 10.3 * panel
            d.text(x + 4.2, -1.3, head, weight="bold")
            d.text(x + 4.2, 9.3, messages)
            for rank in range(N):
                d.text(x + 2.2 * rank + 0.9, 8.4, f"rank {rank}", size=8)
                for matrix in range(N):
                    _matrix(d, x + 2.2 * rank, 2 * matrix, rank, panel == 1 or (panel == 2 and rank == matrix))
        for x in (9.5, 19.8):
            d.line((x, -0.3), (x, 8))
        d.text(15, 10.5, "light: the other shards, for this matrix's update only      dark: this rank's shard, kept")
    return d.figure


def _matrix(d: Diagram, x: float, y: float, rank: int, whole: bool) -> None:
    d.box(x, y, 1.8, 1.6, look="gathered" if whole else "empty")
    d.box(x, y + 0.4 * rank, 1.8, 0.4, look="parameters")
