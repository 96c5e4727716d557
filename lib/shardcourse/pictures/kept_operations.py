"""Draw which operations of a transformer block are kept until backward, and which are run again: three ways."""

from shardcourse.figures.diagram import diagram
from shardcourse.figures.style import LessonFigure

OPERATIONS = (  # in the order of forward; True: a product, which takes nearly all of the FLOPs
    ("norm", False), ("q, k", True), ("v", True), ("rotate", False), ("atten-\ntion", True), ("out", True),
    ("+", False), ("norm", False), ("gate,\nup", True), ("silu,\n×", False), ("down", True), ("+", False),
)  # fmt: skip
WAYS = {  # way -> the operations whose results wait for backward, and those that run again
    "nothing\nrecomputed": ({0, 2, 3, 4, 6, 7, 8, 9}, set()),
    "products\nkept": ({1, 2, 4, 5, 8, 10}, {0, 3, 6, 7, 9}),
    "full": (set(), set(range(10))),
}
LEFT, WIDTH, HEIGHT = 3.2, 1.5, 1.3


def draw() -> LessonFigure:
    with diagram(7.4, 2.8, x=(-0.1, LEFT + WIDTH * len(OPERATIONS) + 0.4), y=(0.5, 9.6)) as d:
        d.text(1.1, 1.3, "operations", fontsize=8)
        d.text(LEFT - 0.45, 1.3, "input", fontsize=8)
        for i, (name, product) in enumerate(OPERATIONS):
            d.box(LEFT + i * WIDTH + 0.3, 0.65, WIDTH - 0.1, HEIGHT, name, "computing" if product else "empty")
        for row, (way, (kept, again)) in enumerate(WAYS.items()):
            y = 2.5 + 1.75 * row
            d.text(1.1, y + HEIGHT / 2, way, weight="bold", fontsize=8)
            d.box(LEFT - 0.6, y, 0.3, HEIGHT, look="activations")
            for i in range(len(OPERATIONS)):
                x = LEFT + i * WIDTH + 0.3
                if i in kept:
                    d.box(x, y, WIDTH - 0.1, HEIGHT, "kept", "activations")
                elif i in again:
                    d.text(x + WIDTH / 2, y + HEIGHT / 2, "again", fontsize=8)
        d.box(4.2, 8.3, 0.9, 0.9, look="computing")
        d.text(5.3, 8.75, "products: nearly all of the FLOPs", ha="left", fontsize=8)
        d.box(12.4, 8.3, 0.9, 0.9)
        d.text(13.5, 8.75, "cheap operations", ha="left", fontsize=8)
    return d.figure
