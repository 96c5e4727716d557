"""The life of a weight that travels in eight bits: fp32 on the shard, bytes and scales between ranks. Lesson 18."""

from shardcourse.figures.diagram import diagram
from shardcourse.figures.style import BLUE, PINK, LessonFigure


def draw() -> LessonFigure:
    with diagram(7.4, 3.9, x=(0, 31), y=(-1.2, 15)) as d:
        for rank, y in enumerate((0.2, 5.4)):
            d.text(0.2, y + 1.4, f"rank {rank}", ha="left", weight="bold")
            shard = d.box(3, y, 4.2, 2.8, "shard\nfp32", "parameters")
            codes = d.box(12.2, y, 2.6, 2.8, "codes\nfp8", "computing")
            scale = d.box(14.9, y, 2.4, 2.8, "scales\nof rows", "computing")
            whole = d.box(21.4, y, 4.6, 2.8, "whole weight\nbf16", "gathered")
            product = d.box(27.6, y, 3.2, 2.8, "matrix\nproduct")
            d.arrow(shard.right, codes.left)
            d.arrow(scale.right, whole.left)
            d.arrow(whole.right, product.left)
        d.arrow((17.4, 1.9), (21.3, 6.5), color=BLUE)
        d.arrow((17.4, 6.5), (21.3, 1.9), color=BLUE)
        for start, end in (((9.2, 4.0), (9.2, 1.8)), ((9.2, 4.4), (9.2, 6.6))):
            d.arrow(start, end, color=PINK)
        d.text(9.6, 4.2, "if one scale serves all rows:\nfirst an all_reduce of amax", ha="left", color=PINK)
        d.text(9.7, -0.6, "fsdp_pre_all_gather", color=PINK, weight="bold")
        d.text(20.6, -0.6, "all_gather, then fsdp_post_all_gather", color=PINK, weight="bold")
        master = d.box(3, 11.2, 4.2, 2.8, "AdamW\nfp32", "optimizer states")
        gradient = d.box(13, 11.2, 4.2, 2.8, "gradient's\nshard, fp32", "gradients")
        local = d.box(26.2, 11.2, 4.6, 2.8, "whole\ngradient", "local gradients")
        d.arrow(product.bottom, (29.2, 11.2))
        d.text(28.8, 9.7, "backward", ha="right")
        d.arrow(local.left, gradient.right, "reduce_scatter")
        d.arrow(gradient.left, master.right)
        d.arrow(master.top, (5.1, 8.2))
        d.text(5.5, 9.7, "updates the shard", ha="left")
    return d.figure
