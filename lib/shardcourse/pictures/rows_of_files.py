"""A Hugging Face checkpoint in three files: each of four ranks reads its rows of each tensor. Lesson 20."""

from shardcourse.figures.diagram import diagram
from shardcourse.figures.style import TEXT, LessonFigure

LOOKS = ("parameters", "optimizer states", "gradients", "local gradients")
FILES = ({"embed": 16_384, "layers.0": 32_800}, {"layers.0": 10_368, "layers.1": 43_168}, {"layers.2": 43_168})
SCALE = 7.4 / 53_536  # widths are numbers in the file; the final norm's 64 are too few to be seen


def draw() -> LessonFigure:
    """Draw the files above, the bytes of one matrix in the middle, and the four ranks below."""
    with diagram(7.4, 3.9, x=(0, 30), y=(0, 10.2), title="No rank reads a whole tensor") as d:
        for f, sizes in enumerate(FILES):
            x = 0.3 + 10 * f
            d.text(x + 4.7, 0.35, f"file {f + 1}", weight="bold")
            d.box(x, 0.8, 2.0, 1.2, "header", "computing")
            x += 2
            for name, numbers in sizes.items():
                x = d.box(x, 0.8, numbers * SCALE, 1.2, name if numbers > 12_000 else "rest", "gathered").right[0]
        d.text(29.7, 2.6, "each rank reads all headers", ha="right")
        for x, end in ((7.4, 5.2), (7.7, 24.8)):  # the zoom into one matrix of layers.0
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
