"""A figure of overlap: the step time, and the hidden share of communication, against communication / computation."""

from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from shardcourse.figures.style import BLUE, TEXT, figure, note, spread

_HEIGHT = 4.2  # inches


def overlap_roofline(steps: Mapping[str, tuple[float, float, float]], *, title: str = "") -> Figure:
    """Draw measured steps between the floor (all is hidden that can be) and the roof (nothing is hidden).

    `steps` maps a name to (communication, computation, step) of one rank, in seconds; communication and computation are
    each measured alone. Let x = communication / computation. A step takes at least max(1, x) times its computation, and
    1 + x times if nothing overlaps. The floor has its ridge at x = 1: right of it no schedule hides all communication.
    A label gives the hidden share of what can be hidden, which is min(communication, computation).
    """
    points = {name: (comm_s / compute_s, step_s / compute_s) for name, (comm_s, compute_s, step_s) in steps.items()}
    x_end = max(1.3, *(1.3 * x for x, _ in points.values()))
    y_end = max(1 + x_end, *(1.05 * y for _, y in points.values()))
    with figure(7.4, _HEIGHT) as (fig, ax):
        ax.set(xlim=(0, x_end), ylim=(0, y_end), title=title)
        ax.set_xlabel("communication / computation, each alone (ratio of seconds)")
        ax.set_ylabel("step / computation (ratio of seconds)")
        _floor_and_roof(ax, x_end)
        _points(ax, points, gap=y_end / (_HEIGHT * 72 / 16))
    return fig


def hidden_share(x: float, y: float) -> float:
    """Return the hidden share of what could be hidden: 1 on the floor, 0 at the roof and above it."""
    return max(0.0, 1 + x - y) / min(1, x)


def _floor_and_roof(ax: Axes, x_end: float) -> None:
    xs = [0.0, 1.0, x_end]
    floor, roof = [1.0, 1.0, x_end], [1 + x for x in xs]
    ax.fill_between(xs, floor, roof, color=TEXT, alpha=0.12, lw=0)
    ax.plot(xs, roof, color=TEXT, lw=1.5, ls=(0, (5, 2)))
    ax.plot(xs, floor, color=TEXT, lw=1.8)
    ax.plot([1, 1], [0, 1], color=TEXT, lw=1, ls=(0, (1, 2)))
    note(ax, "no overlap: 1 + x", (0.85 * x_end, 1 + 0.85 * x_end), shift=(-8, 2), ha="right")
    note(ax, "perfect overlap: max(1, x)", (0, 1), shift=(6, -13))
    note(ax, "left of here all can be hidden", (1, 0), shift=(-6, 6), ha="right")


def _points(ax: Axes, points: Mapping[str, tuple[float, float]], gap: float) -> None:
    heights = spread([y for _, y in points.values()], gap)
    for (name, (x, y)), label_y in zip(points.items(), heights, strict=True):
        ax.vlines(x, max(1, x), 1 + x, color=BLUE, lw=1, alpha=0.5)
        ax.plot(x, y, "o", color=BLUE, ms=6.5)
        at = {"xy": (x, y), "xytext": (1.03, label_y), "textcoords": ("axes fraction", "data")}
        leader = {"arrowstyle": "-", "color": BLUE, "lw": 0.7, "alpha": 0.7, "shrinkB": 4, "relpos": (0, 0.5)}
        text = f"{name}: {hidden_share(x, y):.0%} hidden"
        ax.annotate(text, **at, va="center", color=BLUE, arrowprops=leader, annotation_clip=False)
