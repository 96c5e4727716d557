"""A figure of losses over steps, one line for each run."""

from collections.abc import Mapping, Sequence
from itertools import cycle

from matplotlib.figure import Figure

from shardcourse.figures.style import BLUE, ORANGE, PINK, TEXT, figure, note, spread

_LINES = ((TEXT, "-"), (PINK, "-"), (BLUE, "--"), (ORANGE, ":"))


def loss_curves(
    curves: Mapping[str, Sequence[float]],
    title: str,
    *,
    levels: Mapping[str, float] | None = None,
    shaded: range | None = None,
    top: float | None = None,
) -> Figure:
    """Draw each run's losses, up to `top` if given.

    `levels` are predicted losses, by name; `shaded` are steps with a grey background.
    """
    levels = levels or {}
    with figure(7.4, 3.2) as (fig, ax):
        if shaded:
            ax.axvspan(shaded.start, shaded.stop, color=TEXT, alpha=0.15, lw=0)
        for (name, losses), (color, line) in zip(curves.items(), cycle(_LINES), strict=False):
            ax.plot(losses, color=color, ls=line, lw=2, label=name)
        ax.set(xlabel="step", ylabel="loss", title=title)
        if top is not None:
            ax.set_ylim(0, top)
        low, high = ax.get_ylim()
        for level in levels.values():
            ax.axhline(level, color=TEXT, ls=(0, (1, 2)), lw=1.2)
        for name, height in zip(levels, spread(list(levels.values()), gap=(high - low) / 12), strict=True):
            note(ax, name, (1, height), ("axes fraction", "data"), (6, 0), va="center")
        ax.grid()
        ax.legend()
    return fig
