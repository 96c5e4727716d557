"""What a plan is made of: shapes give bytes, an order gives overlap, speeds give seconds; each has its check."""

from shardcourse.figures.diagram import diagram
from shardcourse.figures.style import TEXT, LessonFigure

ROWS = (  # what goes in, what comes out, the look of both, where to check it, how near it comes
    ("shapes of all tensors", "bytes of a GPU", "parameters", "a small model\non your own ranks", "exact\n(tensors)"),
    (
        "what waits for what",
        "what is overlapped",
        "optimizer states",
        "ranks that sleep\ninstead of computing",
        "close",
    ),
    ("FLOP/s and GB/s", "seconds of each part", "gradients", "other people's runs,\nthen your cluster", "rough"),
)


def draw() -> LessonFigure:
    """Return the picture: three rows, from what the planner knows to where you check what it says."""
    with diagram(7.4, 3.0, x=(0, 15.4), y=(0.2, 6.6)) as d:
        for x, words in ((2, "the planner knows"), (6.6, "it forecasts"), (11, "you check it on"), (14.2, "accuracy")):
            d.text(x, 0.7, words, weight="bold")
        for i, (known, forecast, look, check, near) in enumerate(ROWS):
            y = 1.3 + 1.75 * i
            source = d.box(0.1, y, 3.8, 1.2, known, look)
            result = d.box(4.9, y, 3.4, 1.2, forecast, look)
            test = d.box(9.3, y, 3.9, 1.2, check)
            d.arrow(source.right, result.left)
            d.arrow(result.right, test.left)
            d.text(14.2, y + 0.6, near, weight="bold", color=TEXT)
    return d.figure
