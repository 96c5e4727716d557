"""Two programs' times of one step, measured in turn."""

from collections.abc import Mapping, Sequence
from statistics import median

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from shardcourse.figures.style import MARKS, TEXT, figure, note


def laps_in_turn(laps_s: Mapping[str, Sequence[float]], *, title: str = "") -> Figure:
    """`laps_s`: program -> seconds of its laps; those of one pair have the same place. A line marks each median.

    Raises ValueError where there is nothing to show, or a program has another number of laps.
    """
    if len({len(laps) for laps in laps_s.values()}) != 1 or not all(laps_s.values()):
        raise ValueError("pass {program: seconds of its laps}, as many of each, and one at least")
    with figure(7.4, 2.6) as (fig, ax):
        for (name, laps), (color, marker) in zip(laps_s.items(), MARKS, strict=False):
            ms = [s * 1e3 for s in laps]
            ax.scatter(range(1, len(ms) + 1), ms, s=22, c=color, marker=marker, label=name)
            ax.axhline(median(ms), color=color, lw=1.2)
        ax.set(ylim=(0, 1.1e3 * max(map(max, laps_s.values()))), xlabel="pair of laps", ylabel="a lap, ms")
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        ax.set_title(title)
        if len(laps) > 1:
            note(ax, "lines: medians", (1, 0), "axes fraction", (-2, 4), ha="right", color=TEXT)
        ax.grid(axis="y")
        fig.legend(loc="outside right center")
    return fig
