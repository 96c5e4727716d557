"""Figures of a plan: one GPU's memory over a step, its peak for several strategies, and the parts of the step time."""

from collections.abc import Mapping
from itertools import groupby

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from shardcourse.figures.memory import areas, legend, phase_strip, stack, visible
from shardcourse.figures.style import TEXT, bytes_axis, figure, note, spread
from shardplan.records import MemoryPlan

Capacity = tuple[str, float]  # "H100, 80 GiB", and its bytes
_FAR = 4  # a capacity above this multiple of the memory in use is named, not drawn

# Part of a step: face colour, hatch, colour of the hatch. Computation is grey and waiting orange, as in a timeline.
_PARTS = {
    "computation": (TEXT, "", "none"),
    "exposed communication": ("#c2550c", "", "none"),
    "optimizer": ("#4f535a", "....", "#9a9ea7"),
    "offload": ("#efa63a", "\\\\\\\\", "#b4711a"),
    "bubble": ("none", "/////", TEXT),
    "launch": ("#6ab4ea", "////", "#2f7fb8"),
}
_OTHER = ("none", "xxxx", TEXT)
_IN_USE = {"facecolor": TEXT, "alpha": 0.15, "lw": 0}
_ADDED = {"facecolor": "none", "edgecolor": TEXT, "hatch": "....", "lw": 0.8}


def planned_memory(memory: MemoryPlan, capacity: Capacity | None = None, *, title: str = "") -> Figure:
    """Draw bytes by category at each moment of a step, name the peak, and show how much GPU memory is in use then.

    All moments have the same width, because a plan knows their order but not their duration.
    """
    high = memory.device_bytes[1]
    end = max(high, _drawn(capacity, high))
    held = [m.by_category() for m in memory.moments]
    with figure(7.4, 4.0) as (fig, ax):
        unit = bytes_axis(ax.yaxis, end, "memory of a GPU")
        shown = visible(held, end)
        scaled = [{k: n / unit for k, n in by_category.items()} for by_category in held]
        areas(ax, list(range(len(held) + 1)), [*scaled, scaled[-1]], shown)
        ax.set(xlim=(0, len(held)), ylim=(0, end / unit * 1.17), xlabel="moments of a step, in their order")
        ax.set_title(title, pad=20)
        ax.set_xticks([])
        starts, names = _phases(memory)
        phase_strip(ax, [*starts, len(held)], names)
        _peak(ax, memory, unit, end / unit)
        _levels(ax, memory, capacity, unit)
        swatch = Patch(**_IN_USE, label="memory in use, as a range")
        legend(fig, shown, True, [swatch], loc="outside lower center", ncols=4)
    return fig


def _drawn(capacity: Capacity | None, in_use: float) -> float:
    """Return the capacity in bytes, or 0 if there is none or it is too far above to be drawn."""
    return capacity[1] if capacity and capacity[1] < _FAR * in_use else 0


def _phases(memory: MemoryPlan) -> tuple[list[int], list[str]]:
    runs = groupby(enumerate(memory.moments), key=lambda item: item[1].phase)
    first = [(phase, next(moments)[0]) for phase, moments in runs]
    return [start for _, start in first], [phase for phase, _ in first]


def _peak(ax: Axes, memory: MemoryPlan, unit: float, end: float) -> None:
    """Mark the peak, and write its name above everything else."""
    x = memory.moments.index(memory.peak) + 0.5
    top = memory.allocated_bytes / unit
    ax.plot(x, top, "v", color=TEXT, ms=6, clip_on=False)
    in_left_half = x < 0.55 * len(memory.moments)
    side = {"shift": (5, 0)} if in_left_half else {"shift": (-5, 0), "ha": "right"}
    note(ax, f"peak: {memory.peak.name}", (x, end * 1.06), weight="bold", **side)


def _levels(ax: Axes, memory: MemoryPlan, capacity: Capacity | None, unit: float) -> None:
    """Label three levels at the right end: allocated, in use (a range) and the capacity."""
    low, high = (n / unit for n in memory.device_bytes)
    allocated = memory.allocated_bytes / unit
    ax.axhspan(low, high, **_IN_USE)
    ax.axhline(allocated, color=TEXT, lw=1, ls=(0, (1, 2)))
    labels = {
        f"in use: {_figure(low)} to {_figure(high)}": (low + high) / 2,
        f"allocated: {_figure(allocated)}": allocated,
    }
    if drawn := _drawn(capacity, memory.device_bytes[1]):
        ax.axhline(drawn / unit, color=TEXT, lw=1.8)
        labels[capacity[0]] = drawn / unit
    for (words, _), at in zip(labels.items(), spread([*labels.values()], ax.get_ylim()[1] / 15), strict=True):
        note(ax, words, (1, at), ("axes fraction", "data"), (5, 0), va="center")
    if capacity and not drawn:
        note(ax, f"{capacity[0]}: far above", (1, 1), "axes fraction", (5, 0), va="center")


def _figure(x: float) -> str:
    return f"{x:.3g}" if x < 999.5 else f"{x:,.0f}"


def planned_stacks(plans: Mapping[str, MemoryPlan], capacity: Capacity | None = None, *, title: str = "") -> Figure:
    """Draw one bar for each name: peak bytes by category, and hatched the most that allocator, CUDA and NCCL add."""
    ends = [memory.device_bytes[1] for memory in plans.values()]
    end = max(ends)
    end = max(end * 1.1, _drawn(capacity, end))
    with figure(7.4, 1.5 + 0.3 * len(plans)) as (fig, ax):
        unit = bytes_axis(ax.xaxis, end, "memory of a GPU")
        for y, memory in enumerate(plans.values()):
            _stack(ax, -y, memory, unit)
        ax.set_yticks([-y for y in range(len(plans))], list(plans))
        ax.tick_params(axis="y", length=0)
        ax.set(xlim=(0, end * 1.02 / unit), ylim=(0.6 - len(plans), 0.6))
        ax.set_title(title, pad=26 if capacity else None)
        ax.grid(axis="x")
        if drawn := _drawn(capacity, max(ends)):
            ax.axvline(drawn / unit, color=TEXT, lw=1.8)
            side = "right" if drawn > end / 2 else "left"
            note(ax, capacity[0], (drawn / unit, 1), ("data", "axes fraction"), (0, 4), ha=side)
        shown = visible((memory.peak.by_category() for memory in plans.values()), end)
        swatch = Patch(**_ADDED, label="added by the allocator, CUDA and NCCL")
        legend(fig, shown, True, [swatch], loc="outside lower center", ncols=3)
    return fig


def _stack(ax: Axes, y: float, memory: MemoryPlan, unit: float) -> None:
    held = {name: n / unit for name, n in memory.peak.by_category().items()}
    high = memory.device_bytes[1] / unit
    end = stack(ax, y, held, True, label=_figure(high), label_at=high)[-1]
    ax.barh(y, high - end, 0.8, end, **_ADDED)


def step_parts(steps: Mapping[str, Mapping[str, float]], *, title: str = "") -> Figure:
    """Draw one bar for each name: the parts of its step, whose seconds add up to the step time."""
    longest_s = max(sum(parts.values()) for parts in steps.values())
    unit, name = (1.0, "s") if longest_s >= 1 else (1e-3, "ms")
    shown = [part for part in _order(steps) if any(parts.get(part, 0) > longest_s / 500 for parts in steps.values())]
    with figure(7.4, 1.3 + 0.34 * len(steps)) as (fig, ax):
        for y, parts in enumerate(steps.values()):
            _parts(ax, -y, {part: parts.get(part, 0) / unit for part in shown}, name)
        ax.set_yticks([-y for y in range(len(steps))], list(steps))
        ax.tick_params(axis="y", length=0)
        ax.set(xlim=(0, longest_s / unit * 1.12), ylim=(0.6 - len(steps), 0.6), title=title)
        ax.set_xlabel(f"time of a step, {name}")
        ax.grid(axis="x")
        swatches = [Patch(**_part_look(part)) for part in shown]
        fig.legend(swatches, shown, loc="outside lower center", ncols=4, handlelength=1.6, handleheight=1.1)
    return fig


def _order(steps: Mapping[str, Mapping[str, float]]) -> list[str]:
    found = dict.fromkeys(part for parts in steps.values() for part in parts)
    return [*(part for part in _PARTS if part in found), *(part for part in found if part not in _PARTS)]


def _parts(ax: Axes, y: float, parts: Mapping[str, float], unit: str) -> None:
    end = 0.0
    for part, length in parts.items():
        ax.barh(y, length, 0.7, end, **_part_look(part))
        end += length
    note(ax, f"{end:.3g} {unit}", (end, y), shift=(4, 0), va="center")


def _part_look(part: str) -> dict:
    face, hatch, edge = _PARTS.get(part, _OTHER)
    return {"facecolor": face, "edgecolor": edge, "hatch": hatch, "lw": 0}
