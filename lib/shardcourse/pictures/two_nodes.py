"""Lesson 10a: two nodes, their links, and the dimensions of a mesh: shard inside a node, replicate between nodes."""

from shardcourse.figures.diagram import Box, Diagram, diagram
from shardcourse.figures.style import PINK, LessonFigure

_HALVES = (("first half\nof each unit", "parameters"), ("second half\nof each unit", "gathered"))


def draw() -> LessonFigure:
    """Draw a copy of the model in each node: gathers stay inside, and equal shards meet over the network."""
    with diagram(7.4, 3.3, x=(0, 14.6), y=(0, 6.6), title="A copy of the model in each node") as d:
        left, right = _node(d, 0, 0.2, card_x=4.1), _node(d, 1, 9.2, card_x=9.4)
        d.arrow(left.right, right.left, color=PINK)
        d.arrow(right.left, left.right, color=PINK)
        d.text(7.3, 5.65, "50 GB/s\na GPU", color=PINK, weight="bold")
        d.text(7.3, 1.9, "replicate:\nranks 0 and 2,\nranks 1 and 3\nadd up gradients", color=PINK, weight="bold")
    return d.figure


def _node(d: Diagram, number: int, x: float, card_x: float) -> Box:
    """Draw a node, and return the box of its network cards."""
    d.box(x, 0.5, 5.2, 5.3)
    d.text(x + 2.6, 0.1, f"node {number}")
    switch_x = x + (0.25 if number == 0 else 1.55)
    switch = d.box(switch_x, 4.5, 3.4, 0.9, "switch", "computing")
    for i, (words, look) in enumerate(_HALVES):
        box = d.box(x + 0.2 + 2.5 * i, 1.3, 2.3, 1.3, words, look)
        d.text(box.top[0], 0.95, f"rank {2 * number + i}")
        port = min(max(box.bottom[0], switch.x + 0.3), switch.x + switch.width - 0.3), switch.y
        d.arrow(box.bottom, port)
        d.arrow(port, box.bottom)
    d.text(x + 2.6, 3.4, "450 GB/s\na GPU")
    d.text(x + 2.6, 6.25, f"shard: {2 * number} and {2 * number + 1} gather", weight="bold")
    return d.box(card_x, 4.4, 1.15, 1.1, "network\ncards", "computing")
