"""Lesson 6b: backward's two streams, with the next all_gather issued before and after the reduce_scatter."""

from shardcourse.figures.diagram import Diagram, diagram
from shardcourse.figures.style import LessonFigure

_BACKWARD, _MESSAGE = 3.0, 1.5  # the time of a block's backward, and of each message


def draw() -> LessonFigure:
    """Draw blocks 2, 1 and 0 in backward twice, on one clock."""
    on = {"computing": (0, 3, 6), "gathers": {1: 0, 0: 4.5}, "reductions": {2: 3, 1: 6, 0: 9}}
    off = {"computing": (0, 6, 12), "gathers": {1: 4.5, 0: 10.5}, "reductions": {2: 3, 1: 9, 0: 15}}
    title = "Backward on one GPU: two streams, one communicator"
    with diagram(7.4, 3.5, x=(-4.6, 16.9), y=(-0.9, 7.6), title=title) as d:
        _streams(d, 0.0, "prefetch on: block 1 is gathered while block 2 computes", **on)
        _streams(d, 3.8, "prefetch off: block 1's gather waits for block 2's reduce_scatter", **off)
        d.text(
            0, 7.35, "AG: all_gather of parameters   RS: reduce_scatter of gradients   number: block", ha="left", size=8
        )
    return d.figure


def _streams(d: Diagram, y: float, words: str, computing, gathers, reductions) -> None:
    d.text(-4.5, y - 0.5, words, ha="left", weight="bold")
    d.text(-4.5, y + 0.5, "computing", ha="left")
    d.text(-4.5, y + 1.8, "communication", ha="left")
    for block, start in zip((2, 1, 0), computing, strict=True):
        d.box(start, y, _BACKWARD, 1, f"backward {block}", "computing")
    for block, start in gathers.items():
        d.box(start, y + 1.3, _MESSAGE, 1, f"AG {block}", "gathered")
    for block, start in reductions.items():
        d.box(start, y + 1.3, _MESSAGE, 1, f"RS {block}", "gradients")
