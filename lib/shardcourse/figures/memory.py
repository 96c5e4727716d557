"""Figures of a rank's memory by category: predicted and measured at one moment, and measured over a step."""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby, pairwise

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from shardcourse.figures.style import TEXT, bytes_axis, figure, note

# Category: face colour, colour of the hatch, hatch. Categories that last come first; one hue for each kind of tensor.
_LOOKS = {
    "parameters": ("#1f73bc", "#1f73bc", ""),
    "optimizer_states": ("#089270", "#056049", ".."),
    "gradients": ("#d76111", "#a3470a", "||"),
    "buckets": ("#efa63a", "#b4711a", "\\\\\\\\"),
    "unsharded": ("#6ab4ea", "#2f7fb8", "////"),
    "activations": ("#b52d30", "#b52d30", ""),
    "temporaries": ("#e186ac", "#b04f7b", "xxx"),
    "other": ("#565a61", "#888d97", "----"),
}
_PALE = "#71757f40"


def memory_stacks(
    predicted: Mapping[str, Mapping[str, float]],
    measured: Mapping[str, Sequence[Mapping[str, float]]],
    *,
    budget: tuple[str, float] | None = None,
    title: str = "",
) -> Figure:
    """Draw bytes by category for each strategy: one predicted bar (grey) and one bar for each rank (in colour).

    `predicted[strategy]` is {category: bytes}; `measured[strategy]` is a list of them, by rank. Either may lack a
    strategy, or be empty. Categories are named as in `shardlab.measure.ledger`. `budget` is a level to stay below, with
    its name: ("A100, 80 GiB", bytes).

    Raises ValueError for an unknown category, or if there is nothing to show.
    """
    groups = {name: _bars(name, predicted, measured) for name in {**predicted, **measured}}
    bars = [bar for group in groups.values() for bar in group]
    _check([held for _, held in bars])
    end = max([sum(held.values()) * 1.1 for _, held in bars] + [budget[1] if budget else 0])
    with figure(7.4, 1.35 + 0.24 * len(bars) + 0.36 * len(groups)) as (fig, ax):
        unit = bytes_axis(ax.xaxis, end, "memory of a rank")
        y, ticks = 0.0, []
        for name, group in groups.items():
            note(ax, name, (0, y), ("axes fraction", "data"), (2, -4), weight="bold")
            ticks += [(y - 1 - i, label) for i, (label, _) in enumerate(group)]
            _group(ax, y - 1, group, unit)
            y -= len(group) + 1.5
        ax.set_yticks(*zip(*ticks, strict=True) if measured else [[]])
        ax.tick_params(axis="y", length=0)
        ax.set(xlim=(0, end * 1.02 / unit), ylim=(y + 0.9, 0.8))
        ax.set_title(title, pad=26 if budget else None)  # leaves room for the budget's name
        ax.grid(axis="x")
        if budget:
            ax.axvline(budget[1] / unit, color=TEXT, lw=1.6)
            side = "right" if budget[1] > end / 2 else "left"
            note(ax, budget[0], (budget[1] / unit, 1), ("data", "axes fraction"), (0, 4), ha=side)
        shown = visible((held for _, held in bars), end)
        legend(fig, shown, bool(measured), loc="outside lower center", ncols=4)
    return fig


_PREDICTED = "predicted"


def _check(bars: list[Mapping[str, float]]) -> None:
    unknown = sorted({name for held in bars for name in held if name not in _LOOKS})
    if unknown:
        raise ValueError(f"no categories {', '.join(unknown)}: there are {', '.join(_LOOKS)}")
    if not any(map(sum, (held.values() for held in bars))):
        raise ValueError("nothing to show: pass {strategy: {category: bytes}}, predicted, measured or both")


def _bars(name: str, predicted: Mapping, measured: Mapping) -> list[tuple[str, Mapping[str, float]]]:
    grey = [(_PREDICTED, predicted[name])] if name in predicted else []
    return grey + [(f"rank {rank}", held) for rank, held in enumerate(measured.get(name, ()))]


def _group(ax: Axes, y: float, bars: list[tuple[str, Mapping[str, float]]], unit: float) -> None:
    """Draw bars from y downwards, and dashed lines from the ends of the predicted parts through the measured bars.

    A measured bar's length stands to the right of these lines.
    """
    predicted = sum(bars[0][1].values()) if bars[0][0] == _PREDICTED else 0.0
    for i, (label, held) in enumerate(bars):
        at = max(sum(held.values()), predicted) / unit
        ends = stack(ax, y - i, {k: n / unit for k, n in held.items()}, label != _PREDICTED, label_at=at)
        if label == _PREDICTED and len(bars) > 1:
            ax.vlines(ends, y - len(bars) + 0.55, y - 0.4, color=TEXT, lw=0.9, ls=(0, (2, 2)))


def stack(
    ax: Axes, y: float, held: Mapping[str, float], in_colour: bool, label: str = "", label_at: float | None = None
) -> list[float]:
    """Draw one bar, with its length or `label` behind it, and return the ends of its parts."""
    ends = [0.0]
    for category in _LOOKS:
        if n := held.get(category):
            ax.barh(y, n, 0.8, ends[-1], **look(category, in_colour))
            ends.append(ends[-1] + n)
    words = label or (f"{ends[-1]:.3g}" if ends[-1] < 1000 else f"{ends[-1]:,.0f}")
    note(ax, words, (ends[-1] if label_at is None else label_at, y), shift=(4, 0), va="center")
    return ends[1:]


def memory_over_step(
    timeline: Sequence[tuple[float, Mapping[str, int]]],
    phases: Sequence[tuple[float, str]],
    *,
    by_time: bool = False,
    title: str = "",
) -> Figure:
    """Draw one rank's bytes by category during a step, with its phases and the peak.

    `timeline` and `phases` are the results of the `MemoryTracker` methods of these names. Every allocation and every
    free has the same width, so that a program always gives the same picture. With `by_time` the width is the time
    between them; the tracker makes that time longer.
    """
    seconds = [s for s, _ in timeline]
    xs = [s * 1e3 for s in seconds] if by_time else list(range(len(timeline)))
    phase_starts = [min(s * 1e3 if by_time else bisect_left(seconds, s), xs[-1]) for s, _ in phases]
    totals = [sum(held.values()) for _, held in timeline]
    peak = totals.index(max(totals))
    with figure(7.4, 4.0) as (fig, ax):
        unit = bytes_axis(ax.yaxis, totals[peak], "memory of this rank")
        shown = visible((held for _, held in timeline), totals[peak])
        areas(ax, xs, [{k: held[k] / unit for k in held} for _, held in timeline], shown)
        ax.set(xlim=(xs[0], xs[-1]), ylim=(0, totals[peak] / unit * 1.16))
        ax.set_title(title, pad=20)
        ax.set_xlabel("time since the step began, ms" if by_time else "allocations and frees since the step began")
        phase_strip(ax, [*phase_starts, xs[-1]], [name for _, name in phases])
        _peak_note(ax, xs[peak], totals[peak] / unit, in_left_half=xs[peak] < (xs[0] + xs[-1]) / 2)
        legend(fig, shown, True, loc="outside right center", reverse=True)
    return fig


_COLUMNS = 1000  # the most moments that a picture can show


def areas(ax: Axes, xs: list[float], held: list[dict[str, float]], shown: set[str]) -> None:
    moments = _highest_of_each_column(xs, [sum(h.values()) for h in held])
    xs, floor = [xs[i] for i in moments], [0.0] * len(moments)
    for category in (name for name in _LOOKS if name in shown):
        top = [low + held[i].get(category, 0) for low, i in zip(floor, moments, strict=True)]
        ax.fill_between(xs, floor, top, step="post", **look(category, in_colour=True))
        floor = top


def _highest_of_each_column(xs: list[float], totals: list[float]) -> list[int]:
    """Return the indices of the moments to draw. Of the moments that share a column of the picture, these are the one
    with most bytes and the last, which lasts until the next column."""
    width = (xs[-1] - xs[0]) / _COLUMNS or 1.0
    columns = [[*group] for _, group in groupby(range(len(xs)), lambda i: int((xs[i] - xs[0]) / width))]
    return sorted({i for group in columns for i in (max(group, key=totals.__getitem__), group[-1])} | {0})


def phase_strip(ax: Axes, edges: list[float], names: list[str]) -> None:
    """Write the phases' names above the areas. A phase that is too short for its name gets none, except the last."""

    def room(name: str, start: float, end: float) -> bool:
        return (end - start) / edges[-1] > 0.013 * len(name)

    while names[-1] in names[:-1] and not room(names[-1], *edges[-2:]):  # frees after the optimizer's step, say
        edges, names = [*edges[:-2], edges[-1]], names[:-1]
    for name, (start, end) in zip(names, pairwise(edges), strict=True):
        has_room = room(name, start, end)
        if has_room or end == edges[-1]:
            at, side = ((start + end) / 2, "center") if has_room else (start, "left")
            ax.vlines([start, end], 0, 1, transform=ax.get_xaxis_transform(), color=TEXT, lw=0.8, ls=(0, (2, 2)))
            note(ax, name, (at, 1), ("data", "axes fraction"), (0, 2), ha=side)


def _peak_note(ax: Axes, x: float, total: float, in_left_half: bool) -> None:
    ax.plot(x, total, "v", color=TEXT, ms=6, clip_on=False)
    text = f"peak: {total:.3g} {ax.get_ylabel().split()[-1]}"
    beside = {"shift": (7, 4)} if in_left_half else {"shift": (-7, 4), "ha": "right"}
    note(ax, text, (x, total), weight="bold", **beside)


def look(category: str, in_colour: bool) -> dict:
    face, edge, hatch = _LOOKS[category]
    if in_colour:
        return {"facecolor": face, "edgecolor": edge, "hatch": hatch, "lw": 0}
    return {"facecolor": _PALE, "edgecolor": TEXT, "hatch": hatch, "lw": 0.8}


def visible(held: Iterable[Mapping[str, float]], end: float) -> set[str]:
    return {name for by_category in held for name, n in by_category.items() if n > end / 500}


def legend(fig: Figure, shown: set[str], in_colour: bool, more: Sequence[Patch] = (), **options) -> None:
    names = [name for name in _LOOKS if name in shown]
    swatches = [Patch(**look(name, in_colour), label=name.replace("_", " ")) for name in names]
    fig.legend(handles=[*swatches, *more], handlelength=1.6, handleheight=1.1, **options)
