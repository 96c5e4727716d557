"""Lesson 6a: which units of a model are whole on one rank, at one moment of forward and one of backward."""

from shardcourse.figures.diagram import Diagram, diagram
from shardcourse.figures.style import LessonFigure

UNITS = ("root", "block 0", "block 1", "block 2", "block 3")
_SMALL = {"ha": "left", "size": 8}
_WIDTH, _STEP, _SHARD, _WHOLE = 2.1, 2.6, 0.5, 1.6  # _SHARD and _WHOLE are heights


def draw() -> LessonFigure:
    """Draw rank 0's five units twice: the root and the block that computes are whole; backward gathers one more."""
    with diagram(7.4, 4.2, x=(-4.0, 13.0), y=(-0.8, 9.1), title="What rank 0 of 4 holds of each unit") as d:
        _units(d, 0.0, "forward:\nblock 1 computes", whole=(0, 2))
        d.line((-3.9, 2.65), (12.7, 2.65))
        _units(d, 3.6, "backward:\nblock 2 computes", whole=(0, 3), coming=2)
        y = 3.6 + _SHARD + _WHOLE + 0.25
        d.text(-3.9, y + _WHOLE / 2, "gradients", ha="left")
        d.box(0, y, _WIDTH, _WHOLE / 2, "so far", "local gradients")
        d.box(3 * _STEP, y, _WIDTH, _WHOLE, "whole", "local gradients")
        d.box(4 * _STEP, y, _WIDTH, _SHARD, "1/4", "gradients")
        d.text(0, 8.3, "dark blue: rank 0's quarter, always there    light blue: a whole copy beside it", **_SMALL)
        d.text(0, 8.7, "dashed: not yet or no longer in memory", **_SMALL)
    return d.figure


def _units(d: Diagram, y: float, words: str, whole: tuple[int, ...], coming: int | None = None) -> None:
    d.text(-3.9, y + (_SHARD + _WHOLE) / 2, words, ha="left", weight="bold")
    for i, name in enumerate(UNITS):
        x = i * _STEP
        d.text(x + _WIDTH / 2, y - 0.35, name)
        d.box(x, y, _WIDTH, _SHARD, "1/4", "parameters")
        if i in whole:
            d.box(x, y + _SHARD, _WIDTH, _WHOLE, "whole", "gathered")
        else:
            d.box(x, y + _SHARD, _WIDTH, _WHOLE, "being\ngathered" if i == coming else "")
