"""A figure of the elements that each of four ranks holds at one moment."""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.patches import Patch

from shardcourse.figures.style import TEXT, LessonFigure, figure, note
from shardcourse.widgets.sharding_record import Held, Interval

# Face colour, colour of the hatch, hatch: the same as for these categories in `memory_stacks`
_LOOKS = {
    "parameters": ("#1f73bc", "#1f73bc", ""),
    "gathered parameters": ("#6ab4ea", "#2f7fb8", "////"),
    "gradients, mean over ranks": ("#d76111", "#a3470a", "||"),
    "gradients of this rank alone": ("#efa63a", "#b4711a", "\\\\\\\\"),
    "optimizer states": ("#089270", "#056049", ".."),
}
_ROWS = ("parameters", "gradients", "optimizer\nstates")


def sharding(held: Sequence[Held], kept: Sequence[Held], tensors: Mapping[str, Interval], title: str) -> LessonFigure:
    """Draw panels of parameters, gradients and optimizer states: a row for each rank, elements from left to right.

    `held` and `kept`: for each rank, what it holds at this moment and between steps. Parameters that are held but not
    kept are drawn as gathered. `tensors`: elements [start, end) of each tensor, by name.
    """
    n = max(end for _, end in tensors.values())
    shape = {"nrows": len(_ROWS), "sharex": True}
    with figure(7.6, 0.9 + len(_ROWS) * (0.25 + 0.21 * len(held)), **shape) as (fig, axes):
        for ax, label in zip(axes, _ROWS, strict=True):
            _panel(ax, label, len(held), tensors, n)
        for rank, (now, always) in enumerate(zip(held, kept, strict=True)):
            own = _both(now.parameters, always.parameters)
            _fill(axes[0], rank, "gathered parameters", now.parameters)
            _fill(axes[0], rank, "parameters", own)
            _fill(axes[1], rank, "gradients of this rank alone", now.local_gradients)
            _fill(axes[1], rank, "gradients, mean over ranks", now.gradients)
            _fill(axes[2], rank, "optimizer states", now.optimizer_states)
        _name_tensors(axes[0], tensors)
        axes[-1].set_xlabel("elements of the model, tensor after tensor", labelpad=4)
        fig.suptitle(title, x=0.01, ha="left", size=10, weight="bold")
        swatches = [Patch(facecolor=f, edgecolor=e, hatch=h, lw=0) for f, e, h in _LOOKS.values()]
        fig.legend(swatches, _LOOKS, loc="outside lower center", ncols=3, handlelength=1.6, handleheight=1.1)
    return fig


def _panel(ax: Axes, label: str, ranks: int, tensors: Mapping[str, Interval], n: int) -> None:
    ax.set(xlim=(0, n), ylim=(ranks - 0.45, -0.55), xticks=[])
    ax.set_yticks(range(ranks), [f"rank {rank}" for rank in range(ranks)])
    ax.tick_params(axis="y", length=0)
    ax.set_ylabel(label, weight="bold")
    ax.spines[["left", "bottom"]].set_visible(False)
    for rank in range(ranks):
        ax.broken_barh([(0, n)], (rank - 0.4, 0.8), facecolor=TEXT, alpha=0.12, lw=0)
    for name, (start, _) in tensors.items():
        first_of_unit = name.endswith("weight")
        ax.axvline(start, color=TEXT, lw=1.1 if first_of_unit else 0.6, ls="-" if first_of_unit else (0, (2, 2)))
    ax.axvline(n, color=TEXT, lw=1.1, clip_on=False)


def _fill(ax: Axes, rank: int, look: str, intervals: Sequence[Interval]) -> None:
    face, edge, hatch = _LOOKS[look]
    bars = [(start, end - start) for start, end in intervals]
    ax.broken_barh(bars, (rank - 0.4, 0.8), facecolor=face, edgecolor=edge, hatch=hatch, lw=0, zorder=3)


def _name_tensors(ax: Axes, tensors: Mapping[str, Interval]) -> None:
    for name, (start, end) in tensors.items():
        unit, _, tensor = name.rpartition(".")
        note(ax, tensor, ((start + end) / 2, 1), ("data", "axes fraction"), (0, 3), ha="center", size=8)
        if tensor == "weight":
            note(ax, unit, (start, 1), ("data", "axes fraction"), (2, 15), weight="bold")


def _both(a: Sequence[Interval], b: Sequence[Interval]) -> list[Interval]:
    """Return the intersection of two lists of intervals."""
    pairs = [(max(s, t), min(e, f)) for s, e in a for t, f in b]
    return [(start, end) for start, end in pairs if start < end]
