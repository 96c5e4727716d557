"""A picture: what is in memory when, during one training step of a model with four layers."""

from shardcourse.figures.diagram import LOOKS, Diagram, diagram
from shardcourse.figures.style import LessonFigure

LAYERS, END = 4, 10.5  # the step: a unit of width for the forward and for the backward of each layer, then the update


def draw() -> LessonFigure:
    title = "One step, four layers: what is in memory when"
    with diagram(7.4, 3.5, x=(-2.9, END + 0.1), y=(-0.9, 10.2), title=title) as d:
        for start, end, name in ((0, 4, "forward"), (4, 8, "backward"), (8, END, "optimizer step")):
            d.text((start + end) / 2, -0.45, name, weight="bold")
            d.line((start, -0.8), (start, 10.1))
        _bar(d, 0, 0, END, "parameters", "parameters", "always")
        _bar(d, 1, 0, END, "optimizer states", "optimizer states", "always, from the first step on")
        for layer in range(LAYERS):
            _bar(d, 2 + layer, layer, 8 - layer, "", "activations", f"layer {layer + 1}")
            _bar(d, 9 - layer, 7 - layer, END, "", "gradients", f"layer {layer + 1}")
        d.text(-0.2, 4.0, "activations", ha="right")
        d.text(-0.2, 8.0, "gradients", ha="right")
    return d.figure


def _bar(d: Diagram, row: float, start: float, end: float, name: str, look: str, words: str) -> None:
    d.box(start, row + 0.1, end - start, 0.8, "", look)
    d.text(start + 0.2, row + 0.5, words, ha="left", color=LOOKS[look][1])
    d.text(-0.2, row + 0.5, name, ha="right")
