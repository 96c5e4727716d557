"""A figure of published runs: the planner's predictions over the published values."""

from collections.abc import Mapping, Sequence
from math import log

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator, PercentFormatter

from shardcourse.figures.style import BLUE, ORANGE, TEXT, figure, spread

_HEIGHT = 4.0  # inches
_TICKS = (0.25, 0.5, 0.7, 0.85, 1, 1.15, 1.4, 2, 4)


def predicted_beside_published(
    rows: Sequence[Mapping], what: str, *, within: float = 0.15, n_named: int = 4, title: str = ""
) -> Figure:
    """Draw predicted / published against the published value of each run. `within` is the band of the goal.

    A row has "run", "published", "predicted" and "used". "used" is "predicted" (filled) or "fit" (hollow). Constants
    were fitted on "fit" runs, so these prove nothing. `what` says what was measured, with its unit. The `n_named`
    worst misses among the predicted runs are named.
    """
    fitted = [row for row in rows if row["used"] == "fit"]
    predicted = [row for row in rows if row["used"] != "fit"]
    with figure(7.4, _HEIGHT) as (fig, ax):
        ax.axhspan(1 - within, 1 + within, color=TEXT, alpha=0.12, lw=0, label=f"within {within:.0%}")
        ax.axhline(1, color=TEXT, lw=1.2)
        hits = [row for row in predicted if abs(_ratio(row) - 1) <= within]
        misses = [row for row in predicted if row not in hits]
        hollow = {"facecolor": "#00000000", "edgecolor": TEXT, "lw": 1.1}
        ax.scatter(*_points(fitted), 22, label=f"fitted on ({len(fitted)})", **hollow)
        ax.scatter(*_points(hits), 26, color=BLUE, lw=0, label=f"predicted ({len(hits)})")
        look = {"marker": "D", "color": ORANGE, "lw": 0}
        ax.scatter(*_points(misses), 26, label=f"predicted, further off ({len(misses)})", **look)
        _axes(ax, rows, what)
        ax.set_title(title)
        _name(ax, sorted(misses, key=lambda row: -max(_ratio(row), 1 / _ratio(row)))[:n_named])
        fig.legend(loc="outside lower center", ncols=4)
    return fig


def _ratio(row: Mapping) -> float:
    return row["predicted"] / row["published"]


def _points(rows: Sequence[Mapping]) -> tuple[list[float], list[float]]:
    return [row["published"] for row in rows], [_ratio(row) for row in rows]


def _axes(ax: Axes, rows: Sequence[Mapping], what: str) -> None:
    ratios = [_ratio(row) for row in rows]
    ax.set(xscale="log", yscale="log", ylim=(min(0.7, *ratios) * 0.95, max(1.4, *ratios) * 1.05))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}" if x >= 10 else f"{x:g}"))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.yaxis.set_major_locator(FixedLocator(_TICKS))
    ax.yaxis.set_major_formatter(PercentFormatter(1.0))
    ax.yaxis.set_minor_locator(NullLocator())
    ax.set_xlabel(f"published: {what}")
    ax.set_ylabel("predicted, % of what was published")


def _name(ax: Axes, rows: Sequence[Mapping]) -> None:
    low, high = ax.get_ylim()
    heights = spread([_place(_ratio(row), low, high) for row in rows], gap=16 / (_HEIGHT * 72 * 0.7))
    for row, height in zip(rows, heights, strict=True):
        at = {"xy": (row["published"], _ratio(row)), "xytext": (1.03, height), "textcoords": "axes fraction"}
        leader = {"arrowstyle": "-", "color": ORANGE, "lw": 0.7, "alpha": 0.7, "shrinkB": 4, "relpos": (0, 0.5)}
        words = f"{row['run']}: {_ratio(row):.0%}"
        ax.annotate(words, **at, va="center", color=ORANGE, arrowprops=leader, annotation_clip=False)


def _place(y: float, low: float, high: float) -> float:
    """Return the position of y on a logarithmic axis: 0 at the lower end, 1 at the upper end."""
    return log(y / low) / log(high / low)
