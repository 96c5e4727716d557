"""A figure of step time against the size of DDP's buckets, with the best sizes below."""

import textwrap
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from shardcourse.figures.style import MARKS, PINK, TEXT, figure, note, spread


def bucket_curve(
    predicted_s: Mapping[float, float],
    measured_s: Mapping[str, Mapping[float, Sequence[float]]],
    *,
    levels_s: Mapping[str, float],
    marks_mb: Mapping[str, float] | None = None,
    guesses_ms: Mapping[float, float | None] | None = None,
    full_size: float = 1,
    title: str = "",
) -> Figure:
    """Draw step time against bucket_cap_mb (log axis): a predicted curve, measured points, levels to compare with.

    `measured_s` maps the name of an implementation to {cap: seconds of each step}, for at most two of them. A point is
    the fastest step; a line goes up to the slowest. `marks_mb` names caps worth finding. `guesses_ms` holds the
    student's guesses; None is left out. With `full_size`, a second axis shows the caps times this factor.

    A strip below shows the best cap of each curve. Since only some caps were tried, the true minimum may lie anywhere
    between the neighbours of the best one.
    """
    guesses = {cap: ms for cap, ms in (guesses_ms or {}).items() if ms is not None}
    curves = {"predicted": ({cap: s * 1e3 for cap, s in predicted_s.items()}, TEXT, "v")}
    for (name, times), look in zip(measured_s.items(), MARKS, strict=False):
        curves[f"measured, {name}"] = ({cap: min(t) * 1e3 for cap, t in times.items()}, *look)
    if guesses:
        curves["your prediction"] = (guesses, PINK, "*")
    shape = {"nrows": 2, "sharex": True, "height_ratios": (3.9, 0.24 * len(curves))}
    with figure(7.4, 4.4 + 0.24 * len(curves), **shape) as (fig, (ax, strip)):
        ax.set_xscale("log")
        _curve(ax, predicted_s)
        for (times, shift), look in zip(zip(measured_s.values(), (0.965, 1.035), strict=False), MARKS, strict=False):
            _measured(ax, times, *look, shift)
        _mark(ax, list(guesses), list(guesses.values()), PINK, "*")
        _reference_lines(ax, levels_s, marks_mb or {})
        _optima(strip, curves)
        _cap_axes(ax, strip, sorted({c for times in measured_s.values() for c in times}), full_size)
        ax.set_title(title)
    return fig


def _curve(ax: Axes, predicted_s: Mapping[float, float]) -> None:
    caps = sorted(predicted_s)
    ax.plot(caps, [predicted_s[c] * 1e3 for c in caps], color=TEXT, lw=1.6)
    ax.set_ylabel("step time, ms")


def _measured(ax: Axes, times: Mapping[float, Sequence[float]], color: str, marker: str, shift: float) -> None:
    """Draw one implementation's points, shifted sideways so that the two do not hide each other."""
    caps, fastest = [cap * shift for cap in times], [min(t) * 1e3 for t in times.values()]
    ax.vlines(caps, fastest, [max(t) * 1e3 for t in times.values()], color=color, lw=1.4, alpha=0.6)
    _mark(ax, caps, fastest, color, marker)


def _mark(ax: Axes, xs: Sequence[float], ys: Sequence[float], color: str, marker: str) -> None:
    if marker == "*":
        ax.plot(xs, ys, marker, color=color, ms=11, mew=0)
    else:
        ax.plot(xs, ys, marker, color=color, mfc="none" if marker == "D" else color, ms=6.5, mew=1.6)


def _reference_lines(ax: Axes, levels_s: Mapping[str, float], marks_mb: Mapping[str, float]) -> None:
    for seconds in levels_s.values():
        ax.axhline(seconds * 1e3, color=TEXT, lw=1, ls=(0, (2, 3)), zorder=1)
    for label, cap in marks_mb.items():
        ax.axvline(cap, color=TEXT, lw=1, ls=(0, (1, 2)), zorder=1)
        note(ax, label, (cap, 0), ("data", "axes fraction"), (4, 4))
    low, high = ax.dataLim.intervaly
    ax.set_ylim(low - 0.15 * (high - low), high + 0.06 * (high - low))  # room for the names of marks
    heights = spread([s * 1e3 for s in levels_s.values()], gap=(high - low) / 8)
    for (label, seconds), at in zip(levels_s.items(), heights, strict=True):
        text = textwrap.fill(f"{label}: {seconds * 1e3:.0f} ms", 24)
        note(ax, text, (1, at), ("axes fraction", "data"), (8, 0), va="center")


def _optima(strip: Axes, curves: Mapping[str, tuple[Mapping[float, float], str, str]]) -> None:
    """Draw one row for each curve: its name, its mark and its best cap. The rows serve as the legend."""
    for row, (name, (curve, color, marker)) in enumerate(curves.items()):
        best, low, high = _least(curve)
        strip.plot([low, high], [-row] * 2, color=color, lw=1.4, alpha=0.6)
        _mark(strip, [best], [-row], color, marker)
        at = (1, -row), ("axes fraction", "data")
        note(strip, f"{name}: {best:.2g} MiB", *at, (8, 0), va="center_baseline", color=color)
    strip.set_yticks([(1 - len(curves)) / 2], ["least at"])
    strip.set_ylim(0.4 - len(curves), 0.6)
    strip.tick_params(axis="y", length=0)
    strip.spines["left"].set_visible(False)


def _least(curve: Mapping[float, float]) -> tuple[float, float, float]:
    """Return the cap at which the curve is least, and the caps next to it on either side."""
    grid = sorted(curve)
    at = grid.index(min(grid, key=curve.__getitem__))
    return grid[at], grid[max(0, at - 1)], grid[min(len(grid) - 1, at + 1)]


def _cap_axes(ax: Axes, strip: Axes, caps: Sequence[float], full_size: float) -> None:
    axes = [(strip.xaxis, 1.0)]
    if full_size != 1:
        top = ax.secondary_xaxis("top", functions=(lambda x: x * full_size, lambda x: x / full_size))
        top.set_xlabel(f"the same bucket in the full-size job, {full_size:g} times as large, MiB", labelpad=6)
        axes.append((top.xaxis, full_size))
    for axis, factor in axes:
        axis.set_major_locator(FixedLocator([cap * factor for cap in caps]))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.tick_params(axis="x", length=0)
    strip.set_xlabel("bucket_cap_mb, MiB")
