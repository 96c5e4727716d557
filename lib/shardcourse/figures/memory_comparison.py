"""A figure of several programs' memory over a step (or several), one above the other on one scale."""

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from shardcourse.figures.memory import areas, legend, visible
from shardcourse.figures.style import TEXT, bytes_axis, figure, note


def memory_beside(
    steps: Mapping[str, Sequence[Mapping[str, float]]], *, budget: tuple[str, float] | None = None, title: str = ""
) -> Figure:
    """Draw each program's bytes by category over a step. `steps` maps a program to {category: bytes} of each moment.

    Categories are named as in `shardlab.measure.ledger`. Each step has the full width, whatever its number of moments.
    `budget` is (name, bytes) of a level to stay below. Raises ValueError if there is nothing to show.
    """
    if not steps or not all(steps.values()):
        raise ValueError("nothing to show: pass {program: [{category: bytes}, ...]}, at least a moment of each")
    peak = max(sum(held.values()) for held in (moment for step in steps.values() for moment in step))
    end = max(peak, budget[1] if budget else 0)
    shown = visible((moment for step in steps.values() for moment in step), end)
    with figure(7.4, 1.0 + 1.5 * len(steps), nrows=len(steps), sharex=True, sharey=True, squeeze=False) as (fig, axes):
        for ax, (name, step) in zip(axes[:, 0], steps.items(), strict=True):
            unit = bytes_axis(ax.yaxis, end, "memory")
            xs = [i / len(step) for i in range(len(step) + 1)]
            areas(ax, xs, [{k: n / unit for k, n in held.items()} for held in (*step, step[-1])], shown)
            most = max(sum(held.values()) for held in step) / unit
            note(ax, f"{name}: at most {most:.3g} {ax.get_ylabel().split()[-1]}", (0, 1), "axes fraction", (0, 3))
            if budget:
                ax.axhline(budget[1] / unit, color=TEXT, lw=1.4, ls=(0, (4, 2)))
        axes[0, 0].set(xlim=(0, 1), ylim=(0, end / unit * 1.12))
        axes[0, 0].set_title(title, pad=20)
        axes[-1, 0].set(xticks=[], xlabel="from the first allocation to the last")
        if budget:
            note(axes[0, 0], budget[0], (1, budget[1] / unit), ("axes fraction", "data"), (-2, 3), ha="right")
        legend(fig, shown, True, loc="outside right center", reverse=True)
    return fig
