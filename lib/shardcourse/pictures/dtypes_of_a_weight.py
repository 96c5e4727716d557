"""One parameter in a step under FSDP: held in fp32, gathered in bf16, its gradient reduced in fp32."""

from shardcourse.figures.diagram import diagram
from shardcourse.figures.style import LessonFigure


def draw() -> LessonFigure:
    with diagram(7.4, 3.4, x=(0, 20), y=(-1, 9)) as d:
        d.text(0.2, -0.5, "1/N on each rank", ha="left", weight="bold")
        d.text(9.7, -0.5, "whole, while one block computes", ha="left", weight="bold")
        d.line((9.2, -0.8), (9.2, 8.8))
        shard = d.box(0.2, 0.6, 3.6, 2.2, "shard\nfp32, 4 bytes", "parameters")
        whole = d.box(9.7, 0.6, 3.6, 2.2, "gathered\nbf16, 2 bytes", "gathered")
        used = d.box(16.2, 0.6, 3.6, 2.2, "forward and\nbackward, bf16", "computing")
        local = d.box(16.2, 6.2, 3.6, 2.2, "gradient\nbf16, 2 bytes", "local gradients")
        reduced = d.box(5.1, 6.2, 3.6, 2.2, "shard's gradient\nfp32, 4 bytes", "gradients")
        adam = d.box(0.2, 6.2, 3.6, 2.2, "AdamW's states\nfp32, 8 bytes", "optimizer states")
        d.arrow(shard.right, whole.left)
        d.text(6.5, 1.25, "cast, all_gather")
        d.text(6.5, 2.3, "2 bytes sent, twice")
        d.arrow(whole.right, used.left)
        d.arrow(used.bottom, local.top)
        d.arrow(local.left, reduced.right)
        d.text(12.7, 6.85, "cast, reduce_scatter")
        d.text(12.7, 7.9, "4 bytes sent")
        d.arrow(reduced.left, adam.right)
        d.arrow(adam.top, shard.bottom)
        d.text(2.3, 4.5, "update in fp32", ha="left")
    return d.figure
