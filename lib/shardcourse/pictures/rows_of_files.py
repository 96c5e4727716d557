"""A Hugging Face checkpoint in three files: each of four ranks reads its rows of each tensor. Lesson 20."""

from shardcourse.figures.diagram import diagram
from shardcourse.figures.style import TEXT, LessonFigure

LOOKS = ("parameters", "optimizer states", "gradients", "local gradients")
FILES = (("embed", "layers.0"), ("layers.0", "layers.1"), ("layers.2", "norm"))


def draw() -> LessonFigure:
    """Draw the files above, the bytes of one matrix in the middle, and the four ranks below."""
    with diagram(7.4, 3.9, x=(0, 30), y=(0, 10.2), title="No rank reads a whole tensor") as d:
        for f, names in enumerate(FILES):
            x = 0.3 + 10 * f
            d.text(x + 4.7, 0.35, f"file {f + 1}", weight="bold")
            d.box(x, 0.8, 2.0, 1.2, "header", "computing")
            for i, name in enumerate(names):
                d.box(x + 2 + 7.4 * i / len(names), 0.8, 7.4 / len(names), 1.2, name, "gathered")
        for x, end in ((7.6, 5.2), (8.6, 24.8)):  # the zoom into one matrix of layers.0
            d.line((x, 2.05), (end, 3.7))
        d.text(4.8, 4.3, "bytes of one\nmatrix, k_proj", ha="right")
        for rank, look in enumerate(LOOKS):
            x = 5.2 + 4.9 * rank
            segment = d.box(x, 3.75, 4.9, 1.1, f"rows {8 * rank}:{8 * rank + 8}", look)
            shard = d.box(x + 0.2, 6.6, 4.5, 1.2, f"rank {rank}", look)
            d.arrow(segment.bottom, shard.top, color=TEXT)
        d.text(4.8, 5.7, "seek, read", ha="right")
        d.text(4.8, 7.2, "shards", ha="right")
        d.text(15, 8.75, "lm_head: in no file. It is the same tensor as embed_tokens.")
        d.text(15, 9.6, "rotary frequencies: in no file. Each rank computes them.")
    return d.figure
