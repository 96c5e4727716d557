"""Traces drawn at grading time, in the form that the notebook shows, and their right figures."""

import random

from shardtrace.timeline import Interval, Span, Timeline, union, without
from shardtrace.trace_file import trace_events

RANKS, STEPS, BLOCKS = 3, 3, 4
MS = 1e-3
SHORTEST_WAIT_US = 500.0  # the longest-exposed unit's least exposed time: with nothing exposed, no unit is right
SHARES = ("computes", "all_gather", "reduce_scatter", "rest")


def draw_trace(seed: int, plain: bool) -> dict:
    """Draw the arguments of `read_step`. In a plain trace, collectives take turns and nothing crosses a step's edge.

    Draws again until right and wrong answers differ: the unit with the longest exposed gathers is not the one with the
    longest gathers.
    """
    draw = random.Random(seed)
    while True:
        steps = [[100.0 + 100 * i, 100.0 + 100 * i + draw.uniform(50, 70)] for i in range(STEPS)]
        lines = [Timeline(rank, tuple(_spans(draw, rank, steps, plain))) for rank in range(RANKS)]
        events = [*trace_events(lines), *_step_events(min(t.start_s for t in lines), steps)]
        draw.shuffle(events)
        trace = {"events": events, "rank": draw.randrange(RANKS), "step": draw.randrange(STEPS)}
        mine = [e for e in events if e["ph"] == "X" and e["pid"] == trace["rank"]]
        if _is_telling(trace | {"events": mine}, plain):
            return trace


def _spans(draw: random.Random, rank: int, steps: list[list[float]], plain: bool):
    for i, (start, end) in enumerate(steps):
        at = start + 0.3 if plain else start - 4
        while at < end - 2:
            length = draw.uniform(2, 9)
            stop = min(at + length, end - 0.3) if plain else at + length
            yield Span("compute", draw.choice(("forward", "backward")), at * MS, stop * MS, _unit(draw))
            at = stop + draw.uniform(1, 6)
        yield Span("compute", "other", (end + 8) * MS, (end + 20) * MS, "root")  # an evaluation between steps
        yield from _collectives(draw, start, end, plain)
        yield Span("wait", "all_gather", (start + 5 + rank) * MS, (start + 30 + i) * MS, _unit(draw))


def _collectives(draw: random.Random, start: float, end: float, plain: bool):
    at = start + 1 if plain else start - 5
    kinds = ["all_gather"] * 4 + ["reduce_scatter"] * 3 + ["all_reduce"]
    while at < end - 3:
        length = draw.uniform(3, 9)
        stop = min(at + length, end - 0.3) if plain else at + length
        yield Span("link", draw.choice(kinds), at * MS, stop * MS, _unit(draw), 1 << 16, (at - 0.5) * MS, at * MS)
        at = stop + draw.uniform(0.6, 3) if plain else at + draw.uniform(0.4, 0.9) * length


def _unit(draw: random.Random) -> str:
    return draw.choice(["root", *(f"blocks.{i}" for i in range(BLOCKS))])


def _step_events(zero_s: float, steps: list[list[float]]) -> list[dict]:
    named = {"ph": "X", "cat": "step", "args": {}}
    return [
        named | {"name": f"step {i}", "pid": rank, "tid": 9, "ts": (a * MS - zero_s) * 1e6, "dur": (b - a) * 1e3}
        for rank in range(RANKS)
        for i, (a, b) in enumerate(steps)
    ]


def _is_telling(trace: dict, plain: bool) -> bool:
    exposed = sorted(gathers_of_units(trace, union_of=True, exposed=True).values())
    if len(exposed) < 2 or exposed[-1] < max(1.1 * exposed[-2], SHORTEST_WAIT_US):
        return False
    others = [gathers_of_units(trace, union_of=True, exposed=False)]
    if not plain:
        others.append(gathers_of_units(trace, union_of=False, exposed=True))
    return all(figures_of(trace)["unit"] != max(other, key=other.get) for other in others)


# ------------------------------------------------------------------------------------------------------ what is right


def moments(trace: dict, category: str, kind: str = "", unit: str | None = None) -> list[Interval]:
    """Return the intervals, in microseconds, in which this rank had such events under way in this step."""
    return union(_events(trace, category, kind, unit))


def _events(trace: dict, category: str, kind: str, unit: str | None) -> list[Interval]:
    start, end = bounds(trace)
    found = []
    for e in trace["events"]:
        here = e["ph"] == "X" and e["pid"] == trace["rank"] and e["cat"] == category and e["name"].startswith(kind)
        if here and unit in (None, e["args"].get("unit")):
            found.append((max(start, e["ts"]), min(end, e["ts"] + e["dur"])))
    return [(a, b) for a, b in found if a < b]


def bounds(trace: dict) -> Interval:
    name, rank = f"step {trace['step']}", trace["rank"]
    step = next(e for e in trace["events"] if e["ph"] == "X" and e["pid"] == rank and e["name"] == name)
    return step["ts"], step["ts"] + step["dur"]


def length(intervals: list[Interval]) -> float:
    return sum(b - a for a, b in intervals)


def gathers_of_units(trace: dict, *, union_of: bool = True, exposed: bool) -> dict[str, float]:
    """Return each unit's gather time in the step; `exposed`: only where the rank does not compute.

    `union_of`: overlapping gathers of a unit count once; otherwise their times are added up.
    """
    computes = moments(trace, "compute") if exposed else []
    units = {e["args"]["unit"] for e in trace["events"] if e.get("cat") == "link" and "args" in e}
    if union_of:
        return {u: length(without(moments(trace, "link", "all_gather", u), computes)) for u in units}
    single = {u: _events(trace, "link", "all_gather", u) for u in units}
    return {u: sum(length(without([one], computes)) for one in found) for u, found in single.items()}


def figures_of(trace: dict) -> dict:
    """Return all figures that `read_step` should return."""
    start, end = bounds(trace)
    computes = moments(trace, "compute")
    gathers, scatters = (moments(trace, "link", kind) for kind in ("all_gather", "reduce_scatter"))
    both = union([*gathers, *scatters])
    exposed = gathers_of_units(trace, exposed=True)
    shares = {
        "computes": length(computes),
        "all_gather": length(without(gathers, computes)),
        "reduce_scatter": length(without(without(scatters, computes), gathers)),
    }
    shares = {name: t / (end - start) for name, t in shares.items()}
    hidden = 1 - length(without(both, computes)) / length(both)
    unit = max(exposed, key=exposed.get)
    return shares | {"rest": 1 - sum(shares.values()), "hidden": hidden, "unit": unit}
