"""A drawing kit for pictures that explain: boxes, arrows and words, in the colours that the measured figures have.

A picture is a `Diagram` with a size in inches and a coordinate system of your own (y grows downwards, as one reads):

    with diagram(7.4, 2.5, x=(0, 12), y=(0, 4), title="Rank 0 gathers a unit") as d:
        shard = d.box(0, 1, 3, 1, "rank 0's quarter", "parameters")
        whole = d.box(6, 1, 5, 1, "the whole unit", "gathered")
        d.arrow(shard.right, whole.left, "all_gather")
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from shardcourse.figures.style import TEXT, LessonFigure, figure

# What a box stands for: face colour, colour of its words. The same hues as in `memory_stacks`; light faces, dark words.
LOOKS = {
    "parameters": ("#1f73bc", "white"),
    "gathered": ("#6ab4ea", "#12283a"),
    "gradients": ("#c2550c", "white"),
    "local gradients": ("#efa63a", "#3a2604"),
    "optimizer states": ("#077a5e", "white"),
    "activations": ("#b52d30", "white"),
    "computing": ("#565a61", "white"),
    "overlapped": ("#1d78c9", "white"),  # communication, as in `timelines`
    "exposed": ("#c2550c", "white"),
    "empty": ("none", TEXT),
}
Point = tuple[float, float]


@dataclass(frozen=True)
class Box:
    """A drawn box, and the points at which arrows meet it."""

    x: float
    y: float
    width: float
    height: float

    @property
    def left(self) -> Point:
        return self.x, self.y + self.height / 2

    @property
    def right(self) -> Point:
        return self.x + self.width, self.y + self.height / 2

    @property
    def top(self) -> Point:
        return self.x + self.width / 2, self.y

    @property
    def bottom(self) -> Point:
        return self.x + self.width / 2, self.y + self.height


class Diagram:
    """A picture in the making. `figure` is what a cell displays."""

    def __init__(self, fig: LessonFigure, ax: Axes) -> None:
        self.figure, self.ax = fig, ax

    def box(self, x: float, y: float, width: float, height: float, words: str = "", look: str = "empty") -> Box:
        """Draw a box with words in its middle. `look` is a name in LOOKS; "empty" has a dashed frame and no face."""
        face, colour = LOOKS[look]
        line = {"ls": (0, (3, 2)), "lw": 1} if look == "empty" else {"lw": 0.8}
        self.ax.add_patch(Rectangle((x, y), width, height, facecolor=face, edgecolor=TEXT, **line))
        self.text(x + width / 2, y + height / 2, words, color=colour)
        return Box(x, y, width, height)

    def arrow(self, start: Point, end: Point, words: str = "", *, color: str = TEXT, bend: float = 0) -> None:
        """Draw an arrow, with words above its middle. `bend` curves it: 0.3 is a wide bow."""
        shape = {"arrowstyle": "-|>", "color": color, "lw": 1.4, "connectionstyle": f"arc3,rad={bend}"}
        self.ax.annotate("", end, start, arrowprops=shape | {"shrinkA": 2, "shrinkB": 2})
        if words:
            middle = (start[0] + end[0]) / 2, (start[1] + end[1]) / 2
            self.ax.annotate(words, middle, (0, 4), textcoords="offset points", ha="center", va="bottom", color=color)

    def text(self, x: float, y: float, words: str, **options) -> None:
        """Write words around a point; `options` are matplotlib's, such as ha="left", weight="bold"."""
        self.ax.text(x, y, words, **{"ha": "center", "va": "center", "color": TEXT} | options)

    def line(self, start: Point, end: Point) -> None:
        """Draw a thin dashed line, to divide parts of the picture."""
        self.ax.plot(*zip(start, end, strict=True), color=TEXT, lw=0.8, ls=(0, (2, 3)))


@contextmanager
def diagram(width: float, height: float, *, x: Point, y: Point, title: str = "") -> Iterator[Diagram]:
    """Yield a Diagram of this size in inches; `x` and `y` are the ends of its coordinates, y from the top down."""
    with figure(width, height) as (fig, ax):
        ax.set(xlim=x, ylim=(y[1], y[0]))
        ax.set_axis_off()
        if title:
            ax.set_title(title)
        yield Diagram(fig, ax)
