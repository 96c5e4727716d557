"""Traces drawn at grading time, in the form that the notebook shows, and their right figures."""

import random
from collections.abc import Callable, Iterator

from grading.checks.lab6_profile.named_mistake import SHARES
from shardtrace.timeline import Interval, Span, Timeline, union, without
from shardtrace.trace_file import trace_events

RANKS, STEPS = 3, 12  # "step 1" also begins "step 10", as "blocks.1" begins "blocks.10"
UNITS = ("root", "blocks.0", "blocks.1", "blocks.10", "blocks.11")
KINDS = ("all_gather",) * 7 + ("reduce_scatter",) * 5 + ("all_reduce", "broadcast", "all_to_all")
MS = 1e-3
SHORTEST_WAIT_US = (
    1000.0  # least exposed time of the unit that is waited for longest, and of other kinds in plain traces
)


def draw_trace(seed: int, plain: bool, step: int | None = None, also: Callable[[dict], bool] | None = None) -> dict:
    """Draw the arguments of `read_step`. In a plain trace, events take turns and none crosses a step's edge.

    Draws again until it tells readers apart: one unit's gathers are exposed clearly longer than any other's, gradients
    are reduced, and a step with a similar name stands first; in a plain trace another kind of collective is exposed,
    and in others adding up gathers finds another unit. `also`: what has to hold of the trace besides.
    """
    draw = random.Random(seed)
    asked = draw.randrange(STEPS) if step is None else step
    while True:
        steps = [_step_bounds(draw) for _ in range(RANKS)]
        near = range(max(0, asked - 1), min(STEPS, asked + 2))
        lines = [
            Timeline(rank, tuple(s for i, one in enumerate(of_rank) for s in _spans(draw, *one, plain, i in near)))
            for rank, of_rank in enumerate(steps)
        ]
        events = [*trace_events(lines), *_step_events(min(t.start_s for t in lines), steps)]
        draw.shuffle(events)
        first = next(e["pid"] for e in events if e["name"] == f"step {asked}")
        rank = draw.choice([r for r in range(RANKS) if r != first])  # another rank's step of that name stands first
        trace = {"events": events, "rank": rank, "step": asked}
        if _is_telling(of_its_rank(trace), plain) and (also is None or also(trace)):
            return trace


def _is_telling(trace: dict, plain: bool) -> bool:
    *_, second, longest = sorted(gathers_of_units(trace, exposed=True).values())
    if longest < max(1.1 * second, SHORTEST_WAIT_US) or not moments(trace, "link", "reduce_scatter"):
        return False
    name = f"step {trace['step']}"
    if trace["step"] == 1 and name == next(e["name"] for e in trace["events"] if e["name"].startswith(name)):
        return False
    if not plain:
        return _added_up(trace) != figures_of(trace)["unit"]
    others = union([*moments(trace, "link", "all_reduce"), *moments(trace, "link", "all_to_all")])
    return length(without(others, moments(trace, "compute"))) > SHORTEST_WAIT_US


def _added_up(trace: dict) -> str:
    """Return the unit that is found where gathers of a unit that overlap count twice."""
    times = gathers_of_units(trace, exposed=True, union_of=False)
    return max(times, key=times.get)


def _step_bounds(draw: random.Random) -> list[Interval]:
    """Draw one rank's steps, in ms: each rank's begin and end at other times."""
    starts = [100.0 * (1 + i) + draw.uniform(-8, 8) for i in range(STEPS)]
    return [(start, start + draw.uniform(50, 70)) for start in starts]


def _spans(draw: random.Random, start: float, end: float, plain: bool, near: bool) -> Iterator[Span]:
    """Draw the events of a step, and one after it; only a few of a step that is not near the one asked for."""
    yield Span("compute", "other", (end + 8) * MS, (end + 14) * MS)  # an evaluation between steps
    if not near:
        yield Span("compute", "forward", (start + 2) * MS, (start + 20) * MS, "root")
        yield Span("link", "all_gather", (start + 10) * MS, (start + 30) * MS, draw.choice(UNITS), 1 << 16)
        return
    at = start + 0.3 if plain else start - 4
    while at < end - 2:
        length = draw.uniform(2, 9)
        stop = min(at + length, end - 0.3) if plain else at + length
        name = draw.choice(("forward", "backward", "copy", "optimizer"))
        yield Span("compute", name, at * MS, stop * MS, "" if name == "optimizer" else draw.choice(UNITS))
        at = stop + draw.uniform(1 if plain else -3, 6)
    yield from _collectives(draw, start, end, plain)
    for kind, at in (("all_gather", start + 3), ("reduce_scatter", start + 30)):
        begin = at + draw.uniform(0, 6)
        yield Span("wait", kind, begin * MS, (begin + draw.uniform(15, 20)) * MS, draw.choice(UNITS))


def _collectives(draw: random.Random, start: float, end: float, plain: bool) -> Iterator[Span]:
    at, kind, unit = start + 1 if plain else start - 5, KINDS[0], UNITS[0]
    while at < end - 3:
        length = draw.uniform(3, 9)
        stop = min(at + length, end - 0.3) if plain else at + length
        if plain or draw.random() > 0.4:  # else two of a unit are under way at once
            kind = draw.choice(KINDS)
            unit = draw.choice(UNITS) if kind in SHARES else ""
        yield Span("link", kind, at * MS, stop * MS, unit, 1 << 16, (at - 0.5) * MS, at * MS)
        at = stop + draw.uniform(0.6, 3) if plain else at + draw.uniform(0.4, 0.9) * length


def _step_events(zero_s: float, steps: list[list[Interval]]) -> Iterator[dict]:
    for rank, bounds_of_rank in enumerate(steps):
        for i, (start, end) in enumerate(bounds_of_rank):
            times = {"ts": (start * MS - zero_s) * 1e6, "dur": (end - start) * 1e3}
            yield {"ph": "X", "cat": "step", "name": f"step {i}", "pid": rank, "tid": 9, "args": {}} | times


# ------------------------------------------------------------------------------------------------------ what is right


def of_its_rank(trace: dict) -> dict:
    """Return the trace with nothing but the complete events of the rank that is asked for."""
    return trace | {"events": [e for e in trace["events"] if e["ph"] == "X" and e["pid"] == trace["rank"]]}


def moments(trace: dict, category: str, kind: str = "", unit: str | None = None) -> list[Interval]:
    """Return the intervals, in microseconds, in which this rank had such events under way in this step."""
    return union(single(trace, category, kind, unit))


def single(trace: dict, category: str, kind: str = "", unit: str | None = None) -> list[Interval]:
    """Return the part inside the step of each such event, an interval each."""
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


def gathers_of_units(trace: dict, *, exposed: bool, union_of: bool = True, category: str = "link") -> dict[str, float]:
    """Return each unit's gather time in the step; `exposed`: only where the rank does not compute.

    `union_of`: overlapping gathers of a unit count once; otherwise their times are added up.
    """
    computes = moments(trace, "compute") if exposed else []
    if union_of:
        return {u: length(without(moments(trace, category, "all_gather", u), computes)) for u in UNITS}
    each = {u: single(trace, category, "all_gather", u) for u in UNITS}
    return {u: sum(length(without([one], computes)) for one in found) for u, found in each.items()}


def figures_of(trace: dict) -> dict:
    """Return all figures that `read_step` should return."""
    trace = of_its_rank(trace)
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
