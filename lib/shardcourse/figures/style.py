"""The common style of all figures: colours, fonts, and a figure that is displayed as the last value of a cell.

[Note: colours] Backgrounds are transparent, so figures must be readable on white and on black. A colour of relative
luminance 0.18 has a contrast of 4.5 to 1 with both, which WCAG 2 requires for small text. TEXT and the colours of lines
have this luminance; areas may be lighter. Colours that can meet in one figure also differ for readers with deuteranopia
or protanopia, and in shape or hatch. Grey means predicted, or context; colour means measured. In figures that are only
predicted (`planned`), categories keep the colours of their measurements.
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
DPI = 100  # on the page; the picture itself has twice as many, for sharp screens

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
    """A figure that is drawn without pyplot, which would keep every figure of a session open."""

    def _repr_png_(self):
        width, height = (int(inches * DPI) for inches in self.get_size_inches())
        return self.png(), {"width": width, "height": height, "alt": self.alt}

    def __repr__(self) -> str:
        return self.alt

    @property
    def alt(self) -> str:
        """Return the figure in words, for readers who hear the page: titles, axes, and what the legend names."""
        titles = [self.get_suptitle(), *(ax.get_title(loc="left") or ax.get_title() for ax in self.axes)]
        axes = [f"{a.get_label_text()}" for ax in self.axes for a in (ax.xaxis, ax.yaxis)]
        legends = [*self.legends, *(ax.get_legend() for ax in self.axes)]
        named = [text.get_text() for legend in legends if legend for text in legend.get_texts()]
        inside = [] if any(axes) else [text.get_text() for ax in self.axes for text in ax.texts]
        parts = {"": titles, "axes: ": axes, "shown: ": named, "words: ": inside}
        words = [
            head + ", ".join(dict.fromkeys(" ".join(w.split()) for w in part if w)) for head, part in parts.items()
        ]
        return "Figure. " + ". ".join(word for word in words if word and not word.endswith(": "))

    def png(self) -> bytes:
        picture = io.BytesIO()
        with matplotlib.rc_context(_STYLE):
            self.savefig(picture, format="png", dpi=2 * DPI, metadata={"Software": None})
        return picture.getvalue()


@contextmanager
def figure(width: float, height: float, **subplots):
    """Yield (figure, its axes) of this size in inches. Everything drawn inside the block has the common style."""
    with matplotlib.rc_context(_STYLE):
        fig = LessonFigure(figsize=(width, height), dpi=DPI, layout="constrained")
        yield fig, fig.subplots(**subplots)


def note(ax: Axes, text: str, at: tuple[float, float], coordinates="data", shift=(0, 0), **options) -> None:
    """Write text next to a point, `shift` points (1/72 inch) away."""
    ax.annotate(text, at, xycoords=coordinates, xytext=shift, textcoords="offset points", **options)


def spread(values: list[float], gap: float) -> list[float]:
    """Return positions for the labels of these values, in the same order, such that no two are closer than `gap`."""
    order = sorted(range(len(values)), key=values.__getitem__)
    placed = [values[i] for i in order]
    for _ in range(10 * len(values)):  # neighbours push each other apart, both by the same distance
        for low in range(len(order) - 1):
            push = max(0.0, gap - (placed[low + 1] - placed[low])) / 2
            placed[low], placed[low + 1] = placed[low] - push, placed[low + 1] + push
    return [at for _, at in sorted(zip(order, placed, strict=True))]


def bytes_axis(axis: Axis, largest: float, what: str) -> float:
    """Label an axis in the binary unit that suits `largest` bytes, and return the bytes of that unit."""
    unit, size = next((u for u in _UNITS if largest >= u[1]), _UNITS[-1])
    axis.set_label_text(f"{what}, {unit}")
    return size


_UNITS = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10), ("bytes", 1))
