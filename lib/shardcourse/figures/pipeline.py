"""A figure of pipeline schedules: the micro-batch that each rank computes at each time."""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from shardcourse.figures.style import BLUE, ORANGE, TEXT, figure, note
from shardsim.pipeline_schedules import idle_share
from shardtrace.timeline import Timeline

_LOOKS = {  # face colour and colour of text: predicted is grey, measured is blue
    ("forward", False): ("#c3c7cd", "black"),
    ("backward", False): (TEXT, "white"),
    ("weight", False): ("#e3c9a0", "black"),
    ("forward", True): ("#8cc6f2", "black"),
    ("backward", True): (BLUE, "white"),
    ("weight", True): (ORANGE, "white"),
}
_WIDTH, _ROW = 7.4, 0.19  # inches


def pipeline_schedules(
    measured: Mapping[str, Sequence[Timeline]],
    predicted: Mapping[str, Sequence[Timeline]] | None = None,
    *,
    title: str = "",
) -> Figure:
    """Draw a group of rows for each schedule, one row for each rank. A bar shows its micro-batch if there is room.

    A prediction stands above the measurement of the same name. Each group counts time from its own start.

    Raises ValueError if there is nothing to draw.
    """
    groups = [*_in_order(measured, predicted or {})]
    if not groups:
        raise ValueError("nothing to show: no schedule is given")
    end_s = max(max(t.end_s for t in ranks) - _zero_s(ranks) for _, ranks, _ in groups)
    rows = sum(len(ranks) + 1.6 for _, ranks, _ in groups)
    with figure(_WIDTH, 0.95 + _ROW * rows) as (fig, ax):
        y, ticks = 0.0, []
        for name, ranks, is_measured in groups:
            note(ax, name, (0, y), ("axes fraction", "data"), (2, -3), weight="bold")
            note(ax, f"idle {idle_share(ranks):.0%}", (1, y), ("axes fraction", "data"), (0, -3), ha="right")
            for timeline in ranks:
                y -= 1
                ticks.append((y, f"rank {timeline.rank}"))
                _row(ax, y, timeline, _zero_s(ranks), end_s, is_measured)
            y -= 1.6
        ax.set(xlim=(0, end_s * 1e3), ylim=(y + 0.9, 0.7), xlabel="time since the step began, ms")
        ax.set_title(title)
        ax.set_yticks(*zip(*ticks, strict=True), size=7.5)
        ax.tick_params(axis="y", length=0)
        ax.spines["left"].set_visible(False)
        ax.grid(axis="x")
        _legend(fig, {(span.name, measured) for _, ranks, measured in groups for t in ranks for span in t.spans})
    return fig


def _in_order(measured: Mapping, predicted: Mapping):
    for name in dict.fromkeys([*predicted, *measured]):
        if name in predicted:
            yield (f"{name}, predicted" if name in measured else name), predicted[name], False
        if name in measured:
            yield (f"{name}, measured" if name in predicted else name), measured[name], True


def _zero_s(ranks: Sequence[Timeline]) -> float:
    return min(t.start_s for t in ranks)


def _row(ax: Axes, y: float, timeline: Timeline, zero_s: float, end_s: float, is_measured: bool) -> None:
    """Draw one rank's bars, with a gap at the end of each so that neighbouring bars look separate."""
    for span in timeline.lane("compute"):
        face, ink = _LOOKS[span.name, is_measured]
        start_s, width_s = span.start_s - zero_s, span.duration_s
        drawn_s = max(width_s - end_s / 600, width_s / 2)
        ax.barh(y, drawn_s * 1e3, 0.84, start_s * 1e3, color=face, lw=0)
        if width_s / end_s * (_WIDTH - 0.9) * 72 > 5 * len(span.unit) + 1:
            at = ((start_s + drawn_s / 2) * 1e3, y)
            note(ax, span.unit, at, color=ink, ha="center", va="center_baseline", size=7)


def _legend(fig: Figure, drawn: set[tuple[str, bool]]) -> None:
    kinds = {kind for _, kind in drawn}
    words = {False: ", predicted", True: ", measured"} if len(kinds) == 2 else dict.fromkeys(kinds, "")
    shown = [(f"{name}{words[kind]}", face) for (name, kind), (face, _) in _LOOKS.items() if (name, kind) in drawn]
    patches = [Patch(color=face, lw=0, label=label) for label, face in shown]
    fig.legend(handles=patches, loc="outside lower center", ncols=len(patches))
