"""Lesson 10b: a ring of twelve ranks on three nodes: nine hops stay inside, three leave a node."""

from shardcourse.figures.diagram import diagram
from shardcourse.figures.style import PINK, LessonFigure

_NODES, _RANKS = 3, 4


def draw() -> LessonFigure:
    """Draw the ring, and count the hops of rank 0's shard."""
    with diagram(7.4, 2.5, x=(0, 15.4), y=(0, 4.6), title="A ring over three nodes of four GPUs") as d:
        boxes = []
        for node in range(_NODES):
            x = 0.3 + 5.1 * node
            d.box(x, 0.9, 4.6, 1.5)
            d.text(x + 2.3, 0.5, f"node {node}")
            for i in range(_RANKS):
                boxes.append(d.box(x + 0.2 + 1.1 * i, 1.25, 0.75, 0.8, str(_RANKS * node + i), "parameters"))
        for i, (one, following) in enumerate(zip(boxes, boxes[1:], strict=False)):
            leaves = i % _RANKS == _RANKS - 1
            d.arrow(one.right, following.left, color=PINK if leaves else "#767b84")
        d.arrow(boxes[-1].bottom, boxes[0].bottom, color="#c9ccd1", bend=-0.13)  # not a hop of rank 0's shard
        d.text(7.7, 3.7, "the shard of rank 0 needs N - 1 = 11 hops to reach rank 11", weight="bold")
        d.text(7.7, 4.3, "N - m = 9 inside a node,  m - 1 = 2 between nodes", color=PINK, weight="bold")
    return d.figure
