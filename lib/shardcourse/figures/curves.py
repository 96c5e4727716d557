"""A figure of one quantity against another: predicted curves and measured points."""

from collections.abc import Mapping
from itertools import cycle

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from shardcourse.figures.style import MARKS, TEXT, figure, note, spread

_HEIGHT = 3.6  # inches
_DASHES = ("-", (0, (6, 2)), (0, (2, 1.5)), (0, (6, 2, 1, 2)))
_PREDICTED = "predicted"
Curve = Mapping[float, float]  # x -> y


def curves_beside_points(
    predicted: Mapping[str, Curve],
    measured: Mapping[str, Curve],
    x: str,
    y: str,
    *,
    levels: Mapping[str, float] | None = None,
    log_x: bool = False,
    title: str = "",
) -> Figure:
    """Draw predicted curves in grey, with their names at their ends, and up to three series of measured points.

    The legend says that grey lines are predicted. So a curve named "predicted" gets no name at its end.
    `x` and `y` label the axes: a quantity and its unit. `levels` are heights to compare with, by name. With `log_x` the
    x axis is logarithmic, with base 2.
    """
    ends = {name: curve[max(curve)] for name, curve in predicted.items()} | (levels or {})
    xs = sorted({at for curve in [*predicted.values(), *measured.values()] for at in curve})
    top = 1.06 * max([*ends.values(), *(at for c in [*predicted.values(), *measured.values()] for at in c.values())])
    with figure(7.4, _HEIGHT) as (fig, ax):
        _x_axis(ax, xs, sorted({at for curve in measured.values() for at in curve}), log_x)
        for height in (levels or {}).values():
            ax.axhline(height, color=TEXT, lw=1.0, ls=(0, (1, 2)))
        for curve, dashes in zip(predicted.values(), cycle(_DASHES), strict=False):
            ax.plot(list(curve), list(curve.values()), color=TEXT, lw=1.5, ls=dashes)
        if predicted:
            ax.plot([], [], color=TEXT, lw=1.5, label=_PREDICTED if len(predicted) == 1 else "lines: predicted")
        for (name, curve), (color, marker) in zip(measured.items(), MARKS, strict=False):
            points = list(curve), list(curve.values())
            ax.plot(*points, color=color, marker=marker, ms=7, ls="none", label=name, clip_on=False, zorder=3)
        ax.set(ylim=(0, top), xlabel=x, ylabel=y, title=title)
        ax.grid(axis="y")
        ends.pop(_PREDICTED, None)
        inside = {name: max(curve) for name, curve in predicted.items() if max(curve) < xs[-1]}
        at_edge = [name for name in ends if name not in inside]
        heights = spread([ends[name] for name in at_edge], gap=top / (_HEIGHT * 72 / 18))
        for name, at in zip(at_edge, heights, strict=True):
            note(ax, name, (1, at), ("axes fraction", "data"), (8, 0), va="center")
        for name, at in inside.items():
            note(ax, name, (at, ends[name]), "data", (8, 0), va="center")
        rising = not levels and all(_rises(curve, top) for curve in [*predicted.values(), *measured.values()])
        ax.legend(loc="upper left" if rising else "best", handlelength=1.2)
    return fig


def _rises(curve: Curve, top: float) -> bool:
    """Return True if a curve begins low and is highest at its end, so that the upper left is free of its points."""
    return curve[max(curve)] == max(curve.values()) and (len(curve) == 1 or curve[min(curve)] < 0.6 * top)


def _x_axis(ax: Axes, xs: list[float], ticks: list[float], log: bool) -> None:
    if log:
        ax.set_xscale("log", base=2)
        ax.xaxis.set_major_formatter(FuncFormatter(lambda at, _: f"{at:g}"))
        ax.xaxis.set_minor_locator(NullLocator())
    if log or len(ticks) != 2:  # two ticks are too few for a linear axis: matplotlib chooses them
        ax.xaxis.set_major_locator(FixedLocator([at for at in xs if not ticks or at in ticks or at == xs[-1]]))
    ax.set_xlim(xs[0], xs[-1])
