"""A figure of ranks' timelines: one lane for computing, and one for each kind of collective."""

from collections.abc import Mapping
from dataclasses import replace
from math import ceil

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from shardcourse.figures.style import BLUE, ORANGE, TEXT, figure, note
from shardtrace.timeline import Span, Timeline, union, without

_LOOKS = {  # kind of bar: face colour, hatch, colour of the hatch, colour of text
    "forward": ("#a9aeb6", "", "none", "black"),
    "recompute": ("#a9aeb6", "////", TEXT, "black"),
    "backward": (TEXT, "", "none", "white"),
    "optimizer": ("#4f535a", "....", "#9a9ea7", "white"),
    "copying": ("none", "|||||", TEXT, "none"),
    "other computing": ("none", "....", TEXT, "none"),
    "hidden communication": (BLUE, "", "none", "white"),
    "exposed communication": (ORANGE, "", "none", "white"),
    "waiting for a slower rank": ("none", "/////", TEXT, "none"),
}
_NAMES = {"copy": "copying"} | {name: name for name in ("forward", "recompute", "backward", "optimizer")}
_KINDS = ("compute", "all_gather", "reduce_scatter", "all_reduce")  # lanes in this order, then all others
_WIDTH, _LEFT = 7.4, 1.3  # inches: the width of the figure, and of the names of the lanes
_SHORTEST = 0.004  # share of the picture's width: a shorter wait is not drawn


def timelines(steps: Mapping[str, Timeline], *, one_clock: bool = True, title: str = "") -> Figure:
    """Draw one group of lanes for each name in `steps`. A bar shows the number of its unit if there is room.

    Communication is exposed while the rank does not compute, as in `Timeline.exposed_s`. A hatched bar is a wait: the
    collective is issued and the rank's link is free, but another rank has not arrived (if the spans say so). With
    `one_clock` all times are on the same clock, as on the ranks of one run; without it, each step counts from its own
    start.

    Raises ValueError for a step without spans.
    """
    empty = [name for name, step in steps.items() if not step.duration_s]
    if empty or not steps:
        raise ValueError(f"nothing to show: no spans in {', '.join(empty) or 'steps'}")
    lanes = {name: _lanes(step) for name, step in steps.items()}
    zeros = {name: step.start_s for name, step in steps.items()}
    if one_clock:
        zeros = dict.fromkeys(steps, min(zeros.values()))
    end_ms = max(step.end_s - zeros[name] for name, step in steps.items()) * 1e3
    with figure(_WIDTH, 1.1 + 0.26 * sum(map(len, lanes.values())) + 0.3 * len(steps)) as (fig, ax):
        y, ticks = 0.0, []
        for name, step in steps.items():
            note(ax, name, (0, y), ("axes fraction", "data"), (2, -3), weight="bold")
            note(ax, _summary(step), (1, y), ("axes fraction", "data"), (0, -3), ha="right")
            for lane in lanes[name]:
                y -= 1
                ticks.append((y, lane))
                draw = _compute_lane if lane == "compute" else _link_lane
                draw(_Lane(ax, y, zeros[name], end_ms), step, lane)
            y -= 1.25
        ax.set(xlim=(0, end_ms), ylim=(y + 0.75, 0.7), title=title)
        ax.set_yticks(*zip(*ticks, strict=True))
        ax.tick_params(axis="y", length=0)
        ax.spines["left"].set_visible(False)
        ax.set_xlabel("time since the step began, ms")
        marks = [at for at in ax.get_xticks() if at <= end_ms]
        for lane_y, _ in ticks:  # a grid in the lanes only, so that no line crosses words
            ax.vlines(marks, lane_y - 0.5, lane_y + 0.5, color=TEXT, alpha=0.25, lw=0.8, zorder=0)
        _legend(fig, ax)
    return fig


def _summary(step: Timeline) -> str:
    exposed, all_of_it = step.exposed_s * 1e3, step.communication_s * 1e3
    return f"{step.duration_s * 1e3:.0f} ms; {exposed:.0f} of {all_of_it:.0f} ms communication exposed"


def _lanes(step: Timeline) -> list[str]:
    kinds = {"compute" if s.lane == "compute" else s.name for s in step.spans if s.lane != "wait"}
    return sorted(kinds, key=lambda kind: (_KINDS.index(kind) if kind in _KINDS else len(_KINDS), kind))


class _Lane:
    """A lane: its place on the axes, and the clock's zero."""

    def __init__(self, ax: Axes, y: float, zero_s: float, end_ms: float) -> None:
        self.ax, self.y, self.zero_s, self.end_ms = ax, y, zero_s, end_ms

    def bar(self, look: str, start_s: float, end_s: float, gap: bool = True) -> None:
        """Draw a bar, with a gap at its end so that neighbouring bars look separate."""
        face, hatch, edge, _ = _LOOKS[look]
        width = (end_s - start_s) * 1e3
        drawn = max(width - self.end_ms / 500, width / 2) if gap else width
        where = self.y, drawn, 0.8, (start_s - self.zero_s) * 1e3
        self.ax.barh(*where, facecolor=face, hatch=hatch, edgecolor=edge, lw=0, label=look)

    def label(self, span: Span, ink: str) -> None:
        """Write the number of the span's unit, if there is room."""
        label = span.unit.removeprefix("blocks.").removeprefix("bucket ")
        start, end = ((t - self.zero_s) * 1e3 for t in (span.start_s, span.end_s))
        if ink != "none" and label and (end - start) / self.end_ms * (_WIDTH - _LEFT) * 72 > 5.2 * len(label) + 2:
            middle = (start + end) / 2 - self.end_ms / 1000, self.y
            note(self.ax, label, middle, color=ink, ha="center", va="center_baseline", size=8)


def _compute_lane(lane: _Lane, step: Timeline, _: str) -> None:
    for span in step.lane("compute"):
        look = _NAMES.get(span.name, "other computing")
        lane.bar(look, span.start_s, span.end_s)
        lane.label(span, _LOOKS[look][3])


def _link_lane(lane: _Lane, step: Timeline, kind: str) -> None:
    computing = union((s.start_s, s.end_s) for s in step.lane("compute"))
    links = sorted((s for s in step.spans if s.lane not in ("compute", "wait")), key=lambda s: s.start_s)
    for i, span in enumerate(links):
        if span.name == kind:
            _wait(lane, span, free_s=max((s.end_s for s in links[:i]), default=0.0))
            next_s = min((s.start_s for s in links[i + 1 :] if s.name == kind), default=span.end_s)
            # A rank may learn that a collective has ended only after the next one has started.
            _collective(lane, replace(span, end_s=min(span.end_s, next_s)), computing)


def _wait(lane: _Lane, span: Span, free_s: float) -> None:
    if span.issued_s is None or span.ready_s is None:  # one rank's profile can't tell when the last rank asked
        return
    since_s = max(span.issued_s, free_s)
    if (span.ready_s - since_s) * 1e3 > _SHORTEST * lane.end_ms:
        lane.bar("waiting for a slower rank", since_s, span.ready_s)


def _collective(lane: _Lane, span: Span, computing: list[tuple[float, float]]) -> None:
    whole = [(span.start_s, span.end_s)]
    exposed = without(whole, computing)
    for look, parts in ("exposed communication", exposed), ("hidden communication", without(whole, exposed)):
        for start_s, end_s in parts:
            lane.bar(look, start_s, end_s, gap=end_s == span.end_s)
    lane.label(span, "white")


def _legend(fig: Figure, ax: Axes) -> None:
    found = dict(zip(*reversed(ax.get_legend_handles_labels()), strict=True))
    looks = [look for look in _LOOKS if look in found]
    columns = ceil(len(looks) / ceil(len(looks) / 4))
    fig.legend([found[look] for look in looks], looks, loc="outside lower center", ncols=columns, handlelength=1.4)
