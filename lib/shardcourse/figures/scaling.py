"""A figure of scaling efficiency: the share of N ranks' computing power that remains despite communication."""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator, PercentFormatter, ScalarFormatter

from shardcourse.experiments.scaling import Row
from shardcourse.figures.style import MARKS, TEXT, figure, note, spread

_HEIGHT = 4.2  # inches


def scaling_efficiency(
    measured: Mapping[str, Sequence[Row]],
    *,
    predicted: Mapping[str, Mapping[int, float]] | None = None,
    title: str = "",
) -> Figure:
    """Draw efficiency against the number of ranks: up to three measured curves, each with its confidence band.

    `measured` maps a name ("weak scaling") to the rows of an `experiments.scaling.Scaling`. `predicted` maps the same
    names or others to {ranks: efficiency}.
    """
    predicted = predicted or {}
    ranks = sorted({row.ranks for rows in measured.values() for row in rows}.union(*predicted.values()))
    ends = {f"{name}, predicted": (by_ranks[max(by_ranks)], TEXT) for name, by_ranks in predicted.items()}
    with figure(7.4, _HEIGHT) as (fig, ax):
        _axes(ax, ranks)
        for by_ranks in predicted.values():
            ax.plot(list(by_ranks), list(by_ranks.values()), color=TEXT, lw=1.6, ls=(0, (5, 2)))
        for (name, rows), (color, marker) in zip(measured.items(), MARKS, strict=False):
            _curve(ax, rows, color, marker)
            ends[name] = rows[-1].efficiency, color
        ends["ideal"] = 1.0, TEXT
        top = max([1.0, *(row.high for rows in measured.values() for row in rows)]) * 1.06
        ax.set(ylim=(0, top), title=title)
        heights = spread([at for at, _ in ends.values()], gap=top / (_HEIGHT * 72 / 18))
        for (name, (_, color)), at in zip(ends.items(), heights, strict=True):
            note(ax, name, (1, at), ("axes fraction", "data"), (8, 0), color=color, va="center")
    return fig


def _axes(ax: Axes, ranks: Sequence[int]) -> None:
    ax.set_xscale("log", base=2)
    ax.xaxis.set_major_locator(FixedLocator(ranks))
    ax.xaxis.set_major_formatter(ScalarFormatter())
    ax.xaxis.set_minor_locator(NullLocator())
    ax.yaxis.set_major_formatter(PercentFormatter(1.0))
    ax.set_xlabel("ranks")
    ax.set_ylabel("efficiency: tokens/s, % of N times one rank's")
    ax.set_xlim(ranks[0], ranks[-1])
    ax.axhline(1, color=TEXT, lw=1.2, ls=(0, (1, 2)))
    ax.grid(axis="y")


def _curve(ax: Axes, rows: Sequence[Row], color: str, marker: str) -> None:
    ranks = [row.ranks for row in rows]
    ax.fill_between(ranks, [row.low for row in rows], [row.high for row in rows], color=color, alpha=0.3, lw=0)
    look = {"color": color, "marker": marker, "mfc": color if marker == "o" else "none", "mew": 1.6, "ms": 6.5}
    ax.plot(ranks, [row.efficiency for row in rows], lw=1.6, clip_on=False, **look)
