"""Draw where graphs end: at FSDP's hooks around each block, or nowhere if gathers are operations. Lesson 17."""

from shardcourse.figures.diagram import Diagram, diagram
from shardcourse.figures.style import LessonFigure

ROWS = {"blocks compiled": 1.0, "whole model compiled": 4.2, "gathers in the graph": 7.4}


def draw() -> LessonFigure:
    with diagram(7.4, 3.4, x=(-0.2, 29), y=(-0.4, 10.6)) as d:
        for name, y in ROWS.items():
            d.text(0, y - 0.65, name, ha="left", weight="bold")
        _hooked(d, ROWS["blocks compiled"], "empty", "graph 1", ("embed", "norm, loss"))
        _hooked(d, ROWS["whole model compiled"], "computing", "graph 2", ("graph 1", "graph 3"))
        y = ROWS["gathers in the graph"]
        d.box(0, y, 28.6, 1.6, look="computing")
        d.text(3.4, y + 0.8, "graph 1", color="white")
        for i in range(5):
            d.box(6.2 + 4.4 * i, y + 0.3, 2.3, 1, "gather", "gathered")
        d.box(0, 9.6, 1.6, 0.8, look="gathered")
        d.text(2, 10, "an all_gather", ha="left")
        d.box(10, 9.6, 1.6, 0.8, look="computing")
        d.text(12, 10, "a graph", ha="left")
        d.box(18.4, 9.6, 1.6, 0.8)
        d.text(20.4, 10, "Python, not compiled", ha="left")
    return d.figure


def _hooked(d: Diagram, y: float, ends: str, block: str, words: tuple[str, str]) -> None:
    d.box(0, y, 4.4, 1.6, words[0], ends)
    for i in range(2):
        x = 4.6 + 9.8 * i
        d.box(x, y, 2.6, 1.6, "gather", "gathered")
        d.box(x + 2.6, y, 5, 1.6, f"{block}:\nblock {i}", "computing")
        d.box(x + 7.6, y, 2, 1.6, "free")
    d.box(24.2, y, 4.4, 1.6, words[1], ends)
