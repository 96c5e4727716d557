"""What all figures share: colours, type, and a figure that shows itself as the last value of a cell.

[Note: colours] Backgrounds are transparent, so all must read on white and on black. A colour of relative luminance 0.18
stands 4.5 to 1 against both, which is what WCAG 2 asks of small text: TEXT and the colours of lines are of that kind.
Areas may be lighter. Any two that can meet in one figure are told apart with deuteranopia and protanopia as well, and
differ in shape or hatch too. Grey is arithmetic beside a measurement, or context; colour is measured. Where all is
arithmetic (`planned`), categories keep the colours that they have when they are measured.
"""

import io
from contextlib import contextmanager

import matplotlib
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure

TEXT = "#71757f"
BLUE, ORANGE, PINK = "#1d78c9", "#c2550c", "#e5007a"
MARKS = ((BLUE, "o"), (ORANGE, "D"), (PINK, "s"))  # colour and marker of the first, second, third thing measured
DPI = 100  # a page's; the picture itself has twice as many, for sharp screens

_STYLE = {
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
    "font.family": "DejaVu Sans",  # ships with matplotlib: the same figure on every machine
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.alpha": 0.25,
    "hatch.linewidth": 0.8,
    "legend.frameon": False,
    "text.color": TEXT,
    "axes.edgecolor": TEXT,
    "axes.labelcolor": TEXT,
    "xtick.color": TEXT,
    "ytick.color": TEXT,
    "grid.color": TEXT,
}


class LessonFigure(Figure):
    """Draws itself without pyplot, which would keep every figure of a session open."""

    def _repr_png_(self):
        width, height = (int(inches * DPI) for inches in self.get_size_inches())
        return self.png(), {"width": width, "height": height}

    def png(self) -> bytes:
        picture = io.BytesIO()
        with matplotlib.rc_context(_STYLE):
            self.savefig(picture, format="png", dpi=2 * DPI, metadata={"Software": None})
        return picture.getvalue()


@contextmanager
def figure(width: float, height: float, **subplots):
    """(figure, its axes), of so many inches; what is drawn inside the block has the common style."""
    with matplotlib.rc_context(_STYLE):
        fig = LessonFigure(figsize=(width, height), dpi=DPI, layout="constrained")
        yield fig, fig.subplots(**subplots)


def note(ax: Axes, text: str, at: tuple[float, float], coordinates="data", shift=(0, 0), **options) -> None:
    """Text beside a point, `shift` points (of 1/72 inch) away."""
    ax.annotate(text, at, xycoords=coordinates, xytext=shift, textcoords="offset points", **options)


def spread(values: list[float], gap: float) -> list[float]:
    """Where labels of these values go, in the same order, so that no two are closer than `gap`."""
    order = sorted(range(len(values)), key=values.__getitem__)
    placed = [values[i] for i in order]
    for _ in range(10 * len(values)):  # neighbours push each other away, as far the one as the other
        for low in range(len(order) - 1):
            push = max(0.0, gap - (placed[low + 1] - placed[low])) / 2
            placed[low], placed[low + 1] = placed[low] - push, placed[low + 1] + push
    return [at for _, at in sorted(zip(order, placed, strict=True))]


def bytes_axis(axis: Axis, largest: float, what: str) -> float:
    """Label an axis in the binary unit that suits `largest` bytes; returns that unit's bytes."""
    unit, size = next((u for u in _UNITS if largest >= u[1]), _UNITS[-1])
    axis.set_label_text(f"{what}, {unit}")
    return size


_UNITS = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10), ("bytes", 1))
