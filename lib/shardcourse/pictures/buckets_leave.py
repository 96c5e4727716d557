"""A picture: backward fills buckets from the last layer to the first, and each leaves while backward goes on."""

from shardcourse.figures.diagram import diagram
from shardcourse.figures.style import LessonFigure

_LAYER, _MESSAGE = 2.0, 3.6  # the time of a layer's backward, and of a bucket on the network


def draw() -> LessonFigure:
    title = "One rank in backward: six layers, three buckets"
    with diagram(7.4, 3.4, x=(-3.0, 17.2), y=(-0.7, 6.4), title=title) as d:
        for row, name in enumerate(("computing", "buckets", "network")):
            d.text(-0.3, 0.5 + 2.2 * row, name, ha="right", weight="bold")
        free = 0.0
        for i in range(3):
            start, full = 2 * i * _LAYER, 2 * (i + 1) * _LAYER
            layers = 6 - 2 * i, 5 - 2 * i
            for k, layer in enumerate(layers):
                d.box(start + k * _LAYER, 0, _LAYER, 1, f"layer {layer}", "computing")
            bucket = d.box(start, 2.2, 2 * _LAYER, 1, f"gradients {layers[0]} and {layers[1]}", "local gradients")
            sent = max(full, free)
            look = "exposed" if sent >= 6 * _LAYER else "overlapped"
            message = d.box(sent, 4.4, _MESSAGE, 1, f"all_reduce {i}", look)
            d.arrow((full - 0.15, bucket.bottom[1]), (message.x + 0.25, message.y))
            free = sent + _MESSAGE
        d.line((6 * _LAYER, -0.4), (6 * _LAYER, 5.9))
        d.text(6 * _LAYER + 0.2, -0.4, "backward ends", ha="left", size=8)
        d.text(14.6, 3.9, "exposed: the step waits", size=8)
        d.arrow((0, 6.0), (16.6, 6.0), "time")
    return d.figure
