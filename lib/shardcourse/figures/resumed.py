"""Figures of runs that stop and resume: their losses beside the undisturbed run's, and the time that a job loses."""

from collections.abc import Callable, Mapping, Sequence

from matplotlib.figure import Figure

from shardcourse.figures.style import MARKS, TEXT, figure

Curve = Mapping[float, float]


def losses_without(undisturbed: Curve, resumed: Mapping[str, Curve]) -> Figure:
    """Draw a panel for each run that resumed without a part of its state: its losses on the undisturbed run's."""
    with figure(7.4, 2.5, ncols=len(resumed), sharey=True) as (fig, axes):
        for ax, (name, losses) in zip(axes, resumed.items(), strict=True):
            ax.plot(*_points(undisturbed), color=TEXT, lw=4, alpha=0.45, label="undisturbed")
            ax.plot(*_points(losses), color=MARKS[0][0], lw=1.4, label="resumed")
            ax.set(xlabel="step")
            ax.set_title(f"without\n{name}", fontsize=9, loc="center")
        axes[0].set_ylabel("loss")
        fig.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return fig


def lost_over_interval(
    costs_s: Sequence[float],
    intervals_min: Sequence[float],
    formula: Callable[[float, float], float],
    played: Callable[[float, float], float],
) -> Figure:
    """Draw the share of time lost over the interval between saves: a formula as lines, a simulation as points.

    Both functions take the seconds of a save and of an interval.
    """
    with figure(7.4, 3.2) as (fig, ax):
        ax.plot([], [], color=TEXT, lw=1, ls="--", label="formula")
        for cost_s, (colour, marker) in zip(costs_s, MARKS, strict=True):
            predicted = [formula(cost_s, 60 * minutes) for minutes in intervals_min]
            ax.plot(intervals_min, predicted, color=TEXT, lw=1, ls="--")
            points = [played(cost_s, 60 * minutes) for minutes in intervals_min]
            ax.plot(intervals_min, points, marker, color=colour, ms=5, label=f"simulated, a save takes {cost_s:g} s")
        ax.set(xscale="log", yscale="log", xlabel="minutes of work between saves", ylabel="lost in an hour of work")
        ax.set_xticks(intervals_min, intervals_min)
        ax.set_yticks([1 / 30, 0.1, 1 / 3, 1], ["2 min", "6 min", "20 min", "60 min"])
        ax.minorticks_off()
        fig.legend(loc="outside lower center", ncols=2)
    return fig


def _points(curve: Curve) -> tuple[list[float], list[float]]:
    return list(curve), list(curve.values())
