"""A figure of the plans that a search found: speed against memory."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from shardcourse.figures.style import BLUE, TEXT, figure, note, spread
from shardplan.records import Plan

_HEIGHT = 4.2  # inches


def speed_against_memory(
    plans: Sequence[Plan], front: Sequence[Plan], names: Sequence[str] = (), *, title: str = ""
) -> Figure:
    """Draw each plan that fits as a point, and the plans of `front` as a line with names.

    No smaller plan is as fast as a plan of `front`. `names` are the names of these plans, in their order. All plans are
    for the same machine, whose memory ends the axis.
    """
    capacity = plans[0].setup.machine.memory_bytes / 2**30
    top = max(plan.speed.tokens_per_s for plan in plans)
    with figure(7.4, _HEIGHT) as (fig, ax):
        ax.plot(*_points(plans), "o", color=TEXT, ms=3, alpha=0.6, mew=0)
        xs, ys = _points(front)
        ax.plot(xs, ys, "o-", color=BLUE, lw=1.6, ms=6)
        ax.axvline(capacity, color=TEXT, lw=1.8)
        note(ax, plans[0].setup.machine.gpu.name, (capacity, 1), ("data", "axes fraction"), (0, 4), ha="right")
        _name(ax, xs, ys, names, top)
        ax.set(xlim=(0, capacity * 1.02), ylim=(0, top * 1.08))
        ax.set_title(title, pad=22)
        ax.set_xlabel("memory of a GPU in use, GiB")
        ax.set_ylabel("speed of a GPU, tokens/s")
        ax.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:,.0f}"))
        ax.grid()
    return fig


def _points(plans: Sequence[Plan]) -> tuple[list[float], list[float]]:
    return [p.memory.device_bytes[1] / 2**30 for p in plans], [p.speed.tokens_per_s for p in plans]


def _name(ax: Axes, xs: list[float], ys: list[float], names: Sequence[str], top: float) -> None:
    heights = spread(ys[: len(names)], gap=top / (_HEIGHT * 72 / 16))
    for name, x, y, label_y in zip(names, xs, ys, heights, strict=False):
        at = {"xy": (x, y), "xytext": (1.03, label_y), "textcoords": ("axes fraction", "data")}
        leader = {"arrowstyle": "-", "color": BLUE, "lw": 0.7, "alpha": 0.7, "shrinkB": 4, "relpos": (0, 0.5)}
        ax.annotate(name, **at, va="center", color=BLUE, arrowprops=leader, annotation_clip=False)
