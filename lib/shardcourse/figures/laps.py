"""A figure of two programs' step times, measured in turn."""

from collections.abc import Mapping, Sequence
from statistics import median

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from shardcourse.figures.style import MARKS, TEXT, figure, note


def laps_in_turn(laps_s: Mapping[str, Sequence[float]], *, title: str = "") -> Figure:
    """Draw each program's laps, pair by pair, with a line at the median. `laps_s` maps a program to seconds of laps.

    Raises ValueError if there is nothing to show, or if the programs differ in their number of laps.
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
