"""The life of one unit in a step: sharded, whole, freed; four hooks move it from one to the next. Lesson 5a."""

from shardcourse.figures.diagram import diagram
from shardcourse.figures.style import LessonFigure

HOOKS = (  # x, name, what it does
    (3, "pre_forward", "all_gather"),
    (9, "post_forward", "free"),
    (15, "pre_backward", "all_gather"),
    (21, "post_backward", "free,\nreduce_scatter"),
)


def draw() -> LessonFigure:
    with diagram(7.4, 3.5, x=(-3.6, 24.6), y=(-2.7, 9.2)) as d:
        for x, name, does in HOOKS:
            d.text(x, -2, name, weight="bold")
            d.text(x, 8.3, does)
            d.line((x, -1.3), (x, 7.2))
        d.text(-0.4, 1.25, "whole\nweights", ha="right")
        d.text(-0.4, 4, "shard:\n1/4 of them", ha="right")
        d.text(-0.4, 6, "gradients", ha="right")
        d.box(3, 0, 6, 2.5, "forward computes", "gathered")
        d.box(15, 0, 6, 2.5, "backward computes", "gathered")
        d.text(12, 1.25, "freed: other\nunits compute")
        d.box(0, 3.5, 24.4, 1, "", "parameters")
        d.text(6, 4, "this rank's shard stays", color="white")
        d.box(15.4, 5.2, 5.6, 1.6, "whole gradients", "local gradients")
        d.box(21, 6.2, 3.4, 0.6, "", "gradients")
        d.text(22.7, 5.6, "their shard", size=8)
        d.arrow((3, 3.5), (3, 2.5))
        d.arrow((15, 3.5), (15, 2.5))
    return d.figure
