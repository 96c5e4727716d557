"""One layout, three names: what a rank holds under each strategy, next to what the systems call it."""

from shardcourse.figures.diagram import diagram
from shardcourse.figures.style import LessonFigure

ROWS = (  # DeepSpeed, torch, Accelerate; are weights, gradients, states whole?
    ("no ZeRO", "DDP", "MULTI_GPU", (1, 1, 1)),
    ("stage 1", "DDP and\nZeroRedundancyOptimizer", "no word for it", (1, 1, 0)),
    ("stage 2", "(reshard_after_forward\n=False comes near)", "the same, in YAML", (1, 0, 0)),
    ("stage 3", "fully_shard", "fsdp_version: 2", (0, 0, 0)),
)
LOOKS = ("parameters", "gradients", "optimizer states")
NAMES = ("weights", "gradients", "states")
WIDE, NARROW = 1.7, 0.45


def draw() -> LessonFigure:
    """Return the picture: a row for each strategy, with its three names and the parts that a rank of four holds."""
    with diagram(7.4, 3.1, x=(0, 17.4), y=(0.2, 7.0)) as d:
        for x, words in ((1.2, "DeepSpeed"), (5.1, "PyTorch"), (9.3, "Accelerate, FSDP")):
            d.text(x, 0.7, words, weight="bold")
        d.text(14.3, 0.7, "one of four ranks holds", weight="bold")
        for i, (*names, whole) in enumerate(ROWS):
            y = 2.0 + 1.4 * i
            for x, words in zip((1.2, 5.1, 9.3), names, strict=True):
                d.text(x, y, words)
            for j, look in enumerate(LOOKS):
                x = 11.6 + 1.95 * j
                d.box(x, y - 0.4, WIDE, 0.8)
                d.box(x, y - 0.4, WIDE if whole[j] else NARROW, 0.8, "", look)
        for j, name in enumerate(NAMES):
            d.text(11.6 + 1.95 * j + WIDE / 2, 1.3, name)
    return d.figure
