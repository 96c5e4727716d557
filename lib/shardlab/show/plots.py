"""The figures of the lessons. Each function returns a figure, which shows itself as the last value of a cell.

Grey is arithmetic, colour is measured. Backgrounds are transparent, and all text is a grey that reads on white and on
black. The colours are told apart with any kind of colour vision, and marks differ in shape too.
"""

import io
from collections.abc import Mapping, Sequence
from contextlib import contextmanager

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

GREY, PALE = "#777c84", "#a9aeb6"
BLUE, ORANGE, GREEN = "#2f8fd0", "#e2792b", "#17a07a"  # near Okabe & Ito's, at a lightness that both backgrounds bear
DPI = 100  # a page's; the picture itself has twice as many, for sharp screens

_STYLE = {
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
    "font.family": "DejaVu Sans",  # ships with matplotlib: the same figure on every machine
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.alpha": 0.25,
    "hatch.linewidth": 0.8,
    "legend.frameon": False,
    "text.color": GREY,
    "axes.edgecolor": GREY,
    "axes.labelcolor": GREY,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "grid.color": GREY,
}


class LessonFigure(Figure):
    """Draws itself without pyplot, which would keep every figure of a session open."""

    def _repr_png_(self):
        picture = io.BytesIO()
        with matplotlib.rc_context(_STYLE):
            self.savefig(picture, format="png", dpi=2 * DPI, metadata={"Software": None})
        width, height = (int(inches * DPI) for inches in self.get_size_inches())
        return picture.getvalue(), {"width": width, "height": height}


@contextmanager
def _figure(width: float, height: float):
    with matplotlib.rc_context(_STYLE):
        fig = LessonFigure(figsize=(width, height), dpi=DPI, layout="constrained")
        yield fig, fig.subplots()


def bucket_curve(
    predicted_s: Mapping[float, float],
    measured_s: Mapping[str, Mapping[float, Sequence[float]]],
    *,
    levels_s: Mapping[str, float],
    marks_mb: Mapping[str, float] | None = None,
    guesses_ms: Mapping[float, float | None] | None = None,
    full_size: float = 1,
) -> Figure:
    """Step time against bucket_cap_mb (log axis): a predicted curve, measured points, levels to compare with.

    `measured_s` maps the name of an implementation to {cap: seconds of each step}; the point is the fastest step, a
    line goes up to the slowest. `marks_mb` names caps worth finding; `guesses_ms` is what the student typed, and a None
    is left out. With `full_size`, a second axis shows the caps times this factor.
    """
    with _figure(7.4, 4.4) as (fig, ax):
        caps = sorted(predicted_s)
        ax.plot(caps, [predicted_s[c] * 1e3 for c in caps], color=GREY, lw=1.6, label="predicted")
        looks = zip((BLUE, ORANGE), ("o", "D"), (0.965, 1.035), strict=True)
        for (name, times), look in zip(measured_s.items(), looks, strict=False):
            _measured(ax, name, times, *look)
        guesses = {cap: ms for cap, ms in (guesses_ms or {}).items() if ms is not None}
        if guesses:
            ax.plot(list(guesses), list(guesses.values()), "*", color=GREEN, ms=13, label="your prediction")
        _cap_axis(ax, sorted({c for times in measured_s.values() for c in times}), full_size)
        ax.set_ylabel("step time, ms")
        ax.margins(y=0.1)
        for label, seconds in levels_s.items():
            ax.axhline(seconds * 1e3, color=PALE, lw=1.2, ls=(0, (2, 2)), zorder=1)
            _note(ax, f"{label}: {seconds * 1e3:.0f} ms", (0, seconds * 1e3), ("axes fraction", "data"), (4, 4))
        for label, cap in (marks_mb or {}).items():
            ax.axvline(cap, color=PALE, lw=1.2, ls=(0, (1, 2)), zorder=1)
            _note(ax, label, (cap, 0), ("data", "axes fraction"), (4, 44))
        ax.legend(loc="lower right", bbox_to_anchor=(1, 0.14))
    return fig


def _note(ax: Axes, text: str, at: tuple[float, float], coordinates: tuple[str, str], shift: tuple[int, int]) -> None:
    ax.annotate(text, at, xycoords=coordinates, xytext=shift, textcoords="offset points")


def _measured(ax: Axes, name: str, times: Mapping[float, Sequence[float]], color: str, marker: str, shift: float):
    """The two implementations stand side by side, or one would hide the other."""
    caps, fastest = [cap * shift for cap in times], [min(t) * 1e3 for t in times.values()]
    ax.vlines(caps, fastest, [max(t) * 1e3 for t in times.values()], color=color, lw=1.4, alpha=0.6)
    face = color if marker == "o" else "none"
    ax.plot(caps, fastest, marker, color=color, mfc=face, mew=1.6, ms=6.5, label=f"measured, {name}")


def _cap_axis(ax: Axes, caps: Sequence[float], full_size: float) -> None:
    ax.set_xscale("log")
    axes = [(ax.xaxis, 1.0)]
    if full_size != 1:
        top = ax.secondary_xaxis("top", functions=(lambda x: x * full_size, lambda x: x / full_size))
        top.set_xlabel(f"the same bucket in the full-size job, {full_size:g} times as large, MiB", labelpad=6)
        axes.append((top.xaxis, full_size))
    for axis, factor in axes:
        axis.set_major_locator(FixedLocator([cap * factor for cap in caps]))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.set_xlabel("bucket_cap_mb, MiB")


def step_timeline(steps: Mapping[str, Mapping], *, title: str = "", one_clock: bool = True) -> Figure:
    """What a rank's processor and link did in one step: two lanes for each name in `steps`.

    A step is {"forward": (start, end), "backward": (start, end), "transfers": [(issued, started, finished), ...]} in
    seconds; with `one_clock`, of the same clock, else each from its own beginning. Of a transfer, what lies after the
    end of this rank's backward is exposed; time in which it was issued and the link free, but another rank had not
    arrived, is shown as waiting.
    """
    begins = [step["forward"][0] for step in steps.values()]
    with _figure(7.4, 0.9 + 0.62 * len(steps)) as (fig, ax):
        for row, (step, begin) in enumerate(zip(steps.values(), begins, strict=True)):
            zero = min(begins) if one_clock else begin
            _compute_lane(ax, -row, step, zero)
            _link_lane(ax, -row - 0.36, step, zero)
        ax.set_yticks([-row - 0.18 for row in range(len(steps))], list(steps))
        ax.tick_params(axis="y", length=0)
        ax.spines["left"].set_visible(False)
        ax.set_xlim(left=0)
        ax.set_xlabel("time since the step began, ms")
        ax.grid(axis="x")
        ax.set_title(title)
        _timeline_legend(fig, ax)
    return fig


_KINDS = {  # label: face, hatch
    "forward": (PALE, ""),
    "backward": (GREY, ""),
    "all_reduce, hidden": (BLUE, ""),
    "all_reduce, exposed": (ORANGE, ""),
    "waiting for a slower rank": ("none", "/////"),
}


def _bar(ax: Axes, kind: str, y: float, start_s: float, end_s: float, zero: float) -> None:
    face, hatch = _KINDS[kind]
    edge = GREY if hatch else "none"
    span = ((start_s - zero) * 1e3, (end_s - start_s) * 1e3)
    ax.broken_barh([span], (y - 0.15, 0.3), facecolor=face, edgecolor=edge, hatch=hatch, lw=0, label=kind)


def _compute_lane(ax: Axes, y: float, step: Mapping, zero: float) -> None:
    for kind in ("forward", "backward"):
        _bar(ax, kind, y, *step[kind], zero)


def _link_lane(ax: Axes, y: float, step: Mapping, zero: float) -> None:
    computed_s, free_s, gap_s = step["backward"][1], 0.0, 0.0007  # a gap, so that neighbours are told apart
    next_starts = [started_s for _, started_s, _ in step["transfers"][1:]] + [float("inf")]
    for (issued_s, started_s, finished_s), next_s in zip(step["transfers"], next_starts, strict=True):
        waits_from = max(issued_s, free_s)
        if started_s - waits_from > 5e-3:
            _bar(ax, "waiting for a slower rank", y, waits_from, started_s, zero)
        free_s = min(finished_s, next_s)  # the rank may learn of it only when the next one is on its way
        end_s = free_s - gap_s
        turn_s = min(max(computed_s, started_s), end_s)
        if turn_s > started_s:
            _bar(ax, "all_reduce, hidden", y, started_s, turn_s, zero)
        if end_s > turn_s:
            _bar(ax, "all_reduce, exposed", y, turn_s, end_s, zero)


def _timeline_legend(fig: Figure, ax: Axes) -> None:
    found = dict(zip(*reversed(ax.get_legend_handles_labels()), strict=True))
    labels = [kind for kind in _KINDS if kind in found]
    handles = [found[kind] for kind in labels]
    fig.legend(handles, labels, loc="outside lower center", ncols=len(labels), handlelength=1.2)
