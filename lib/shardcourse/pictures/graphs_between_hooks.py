"""Draw where forward's graphs end: at FSDP's hooks, or nowhere if gathers are operations. Lesson 17."""

from shardcourse.figures.diagram import Diagram, diagram
from shardcourse.figures.style import LessonFigure

ROWS = {
    "blocks compiled: one graph, which all blocks use": 1.0,
    "whole model compiled: three graphs": 4.2,
    "gathers in the graph: one graph (2 blocks of 7 matrices)": 7.4,
}


def draw() -> LessonFigure:
    with diagram(7.4, 3.4, x=(-0.2, 29), y=(-0.4, 10.6), title="Forward: where do graphs end?") as d:
        for name, y in ROWS.items():
            d.text(0, y - 0.65, name, ha="left", weight="bold")
        blocks, whole, inside = ROWS.values()
        _hooked(d, blocks, "empty", "graph 1", ("embed", "norm,\nloss"))
        _hooked(d, whole, "computing", "graph 2", ("graph 1", "graph 3"))
        d.box(0, inside, 28.6, 1.6, look="computing")
        d.text(1.4, inside + 0.8, "graph 1", color="white")
        for i in range(14):
            d.box(3.1 + 1.8 * i, inside + 0.3, 0.8, 1, look="gathered")
        for x, look, words in (0, "gathered", "an all_gather"), (8, "computing", "compiled"), (15, "empty", "Python"):
            d.box(x, 9.6, 1.6, 0.8, look=look)
            d.text(x + 2, 10, words, ha="left")
    return d.figure


def _hooked(d: Diagram, y: float, ends: str, block: str, words: tuple[str, str]) -> None:
    """Draw the root's gather and three blocks, each between its gather and its free."""
    d.box(0, y, 1.2, 1.6, look="gathered")
    d.box(1.2, y, 3.1, 1.6, words[0], ends)
    for i in range(3):
        x = 4.3 + 7.1 * i
        d.box(x, y, 1.2, 1.6, look="gathered")
        d.box(x + 1.2, y, 3.9, 1.6, f"block {i}:\n{block}", "computing")
        d.box(x + 5.1, y, 2, 1.6, "free")
    d.box(25.6, y, 3, 1.6, words[1], ends)
