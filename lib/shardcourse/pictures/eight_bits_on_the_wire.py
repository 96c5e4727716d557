"""The life of a weight that travels in eight bits: fp32 on the shard, bytes and scales between ranks. Lesson 18."""

from shardcourse.figures.diagram import diagram
from shardcourse.figures.style import BLUE, PINK, LessonFigure


def draw() -> LessonFigure:
    with diagram(7.4, 3.5, x=(0, 30), y=(-1.2, 13.2)) as d:
        for rank, y in enumerate((0.2, 4.4)):
            d.text(0.2, y + 1.4, f"rank {rank}", ha="left", weight="bold")
            shard = d.box(3, y, 4.2, 2.8, "shard\nfp32", "parameters")
            codes = d.box(12.2, y, 2.6, 2.8, "codes\nfp8", "gathered")
            scale = d.box(14.9, y, 1.7, 2.8, "scale", "gathered")
            whole = d.box(22, y, 4.6, 2.8, "whole weight\nbf16", "gathered")
            d.arrow(shard.right, codes.left)
            d.arrow(scale.right, whole.left)
            d.arrow(whole.right, (28.2, y + 1.4))
        d.arrow((16.7, 1.8), (21.9, 5.6), color=BLUE)
        d.arrow((16.7, 5.6), (21.9, 1.8), color=BLUE)
        d.text(9.7, -0.6, "fsdp_pre_all_gather", color=PINK, weight="bold")
        d.text(20.6, -0.6, "all_gather, then fsdp_post_all_gather", color=PINK, weight="bold")
        d.text(28.3, 3.7, "matrix\nproduct")
        master = d.box(3, 9.4, 4.2, 2.8, "AdamW\nfp32", "optimizer states")
        gradient = d.box(13, 9.4, 4.2, 2.8, "gradient's\nshard, fp32", "gradients")
        local = d.box(22, 9.4, 4.6, 2.8, "whole\ngradient", "local gradients")
        d.arrow((28.3, 7.3), (26.7, 9.3))
        d.arrow(local.left, gradient.right, "reduce_scatter")
        d.arrow(gradient.left, master.right)
        d.arrow(master.top, (5.1, 7.3))
        d.text(5.5, 8.3, "updates the shard", ha="left")
    return d.figure
