"""Usual mistakes in reading a trace, and the wrong figures of each.

A mistake is a function from a trace to the figures that it makes wrong.
"""

from collections.abc import Callable
from functools import partial
from itertools import pairwise

from grading.references.lab6_profile.draw_trace_and_figures import (
    SHARES,
    UNITS,
    bounds,
    figures_of,
    gathers_of_units,
    length,
    moments,
    of_its_rank,
    single,
)
from shardtrace.timeline import union, without

Mistake = Callable[[dict], dict]
KINDS = SHARES[1:3]


# -------------------------------------------------------------------------------------------------- of the four shares


def _shares(trace: dict, intervals: dict) -> dict:
    start, end = bounds(trace)
    return {name: length(found) / (end - start) for name, found in intervals.items()}


def _summed(trace: dict) -> dict:
    return _shares(trace, {kind: single(trace, "link", kind) for kind in KINDS})


def _exposed_each(trace: dict) -> dict:
    computes = moments(trace, "compute")
    each = {kind: single(trace, "link", kind) for kind in KINDS}
    return _shares(trace, {kind: [x for one in each[kind] for x in without([one], computes)] for kind in KINDS})


def _computing_summed(trace: dict) -> dict:
    return _shares(trace, {"computes": single(trace, "compute")})


def _under_way(trace: dict) -> dict:
    return _shares(trace, {kind: moments(trace, "link", kind) for kind in KINDS})


def _gathers_under_way(trace: dict) -> dict:
    return _shares(trace, {"all_gather": moments(trace, "link", "all_gather")})


def _waited(trace: dict) -> dict:
    return _shares(trace, {kind: moments(trace, "wait", kind) for kind in KINDS})


def _waited_exposed(trace: dict) -> dict:
    computes = moments(trace, "compute")
    gathers, scatters = (without(moments(trace, "wait", kind), computes) for kind in KINDS)
    return _shares(trace, {"all_gather": gathers, "reduce_scatter": without(scatters, gathers)})


def _twice(trace: dict) -> dict:
    computes = moments(trace, "compute")
    return _shares(trace, {kind: without(moments(trace, "link", kind), computes) for kind in KINDS})


def _scatters_first(trace: dict) -> dict:
    computes = moments(trace, "compute")
    gathers, scatters = (without(moments(trace, "link", kind), computes) for kind in KINDS)
    return _shares(trace, {"all_gather": without(gathers, scatters), "reduce_scatter": scatters})


def _other_kinds(trace: dict) -> dict:
    computes = moments(trace, "compute")
    others = without(moments(trace, "link"), computes)
    return _shares(trace, {"reduce_scatter": without(others, moments(trace, "link", "all_gather"))})


def _of_the_whole_trace(trace: dict) -> dict:
    start, end = bounds(trace)
    timed = [e for e in trace["events"] if e["ph"] == "X"]
    whole = max(e["ts"] + e["dur"] for e in timed) - min(e["ts"] for e in timed)
    return {k: figures_of(trace)[k] * (end - start) / whole for k in SHARES[:3]}


def _of_communication(trace: dict) -> dict:
    start, end = bounds(trace)
    both = length(union([x for kind in KINDS for x in moments(trace, "link", kind)]))
    return {k: figures_of(trace)[k] * (end - start) / both for k in KINDS}


def _all_ranks(trace: dict) -> dict:
    """Take the events of all ranks together. Returns the unit as well."""
    merged = [e if e["ph"] != "X" or e["cat"] == "step" else e | {"pid": trace["rank"]} for e in trace["events"]]
    return figures_of(trace | {"events": merged})


def _first_ranks_step(trace: dict) -> dict:
    """Take the first step of that name, whosever it is. Returns the unit as well."""
    name = f"step {trace['step']}"
    step = next(e for e in trace["events"] if e["name"] == name) | {"pid": trace["rank"]}
    others = [e for e in trace["events"] if e.get("cat") != "step"]
    return figures_of(trace | {"events": [step, *others]})


def _uncut(trace: dict) -> dict:
    """Take events that begin in the step, up to their own end."""
    start, end = bounds(trace)
    inside = [e for e in of_its_rank(trace)["events"] if start <= e["ts"] < end]
    computes, gathers = (
        union((e["ts"], e["ts"] + e["dur"]) for e in inside if e["cat"] == c and e["name"].startswith(kind))
        for c, kind in (("compute", ""), ("link", "all_gather"))
    )
    return _shares(trace, {"computes": computes, "all_gather": without(gathers, computes)})


def _only_inside(trace: dict) -> dict:
    """Leave out the events that cross the step's edges. Returns the unit as well."""
    start, end = bounds(trace)
    inside = [e for e in of_its_rank(trace)["events"] if start <= e["ts"] and e["ts"] + e["dur"] <= end]
    return figures_of(trace | {"events": inside})


def _some(mistake: Mistake, keys: tuple[str, ...], trace: dict) -> dict:
    found = mistake(trace)
    return {k: found[k] for k in keys}


OF_SHARES: dict[str, Mistake] = {
    "'all_gather' and 'reduce_scatter' are all the time that they are under way, also beside computing: only what has "
    "no computing beside it is waited for.": _under_way,
    "'all_gather' is all the time that one is under way, also beside computing: only what has no computing beside it "
    "is waited for.": _gathers_under_way,
    "'all_gather' and 'reduce_scatter' are durations added up: two collectives under way at once count twice, and so "
    "does what lies beside computing.": _summed,
    "exposed times are added up event by event: two collectives under way at once count twice. Unite them first.": (
        _exposed_each
    ),
    "'computes' is durations added up: where two computing events overlap, a moment counts twice. Unite them first.": (
        _computing_summed
    ),
    "these are spans of the category 'wait', which says when the host is blocked: asked is when a collective is under "
    "way and nothing computes.": _waited,
    "these are spans of the category 'wait' beside no computing: asked are those of the category 'link'.": (
        _waited_exposed
    ),
    "moments in which an all_gather and a reduce_scatter are under way count in both: they belong to the all_gather.": (
        _twice
    ),
    "moments in which an all_gather and a reduce_scatter are under way count as the reduce_scatter's: they belong to "
    "the all_gather.": _scatters_first,
    "'reduce_scatter' has other kinds of collectives in it: they belong to the rest.": _other_kinds,
    "the denominator is the whole trace: it should be the step that was asked for.": _of_the_whole_trace,
    "the denominator is the time of communication: it should be the step's.": _of_communication,
    "the events of all ranks are taken together: one rank was asked for (pid).": partial(_some, _all_ranks, SHARES[:3]),
    "the step is another rank's: of that name, each rank has one of its own (pid).": partial(
        _some, _first_ranks_step, SHARES[:3]
    ),
    "events that cross the step's edges are not cut: only the part inside of the step counts.": _uncut,
    "events that cross the step's edges are left out: the part inside of the step counts.": partial(
        _some, _only_inside, SHARES[:3]
    ),
}


# ------------------------------------------------------------------------------------------------- of what is hidden


def _hidden(trace: dict, of: tuple[str, ...] = KINDS, united: bool = True) -> dict:
    """Return the hidden share of these kinds of collectives ("" is all), united or event by event."""
    computes = moments(trace, "compute")
    found = [x for kind in of for x in single(trace, "link", kind)]
    exposed = [without([one], computes) for one in (union(found) if united else found)]
    return {"hidden": 1 - sum(map(length, exposed)) / length(union(found) if united else found)}


def _exposed_part(trace: dict) -> dict:
    return {"hidden": 1 - figures_of(trace)["hidden"]}


def _hidden_of(trace: dict, whole: str) -> dict:
    start, end = bounds(trace)
    both = length(union([x for kind in KINDS for x in moments(trace, "link", kind)]))
    wholes = {"step": end - start, "computing": length(moments(trace, "compute"))}
    return {"hidden": figures_of(trace)["hidden"] * both / wholes[whole]}


OF_HIDDEN: dict[str, Mistake] = {
    "'hidden' is the exposed part: it should be the part that lies beside computing.": _exposed_part,
    "'hidden' is a share of the step: it should be a share of the time of communication.": partial(
        _hidden_of, whole="step"
    ),
    "'hidden' is a share of the time of computing: it should be one of the time of communication.": partial(
        _hidden_of, whole="computing"
    ),
    "'hidden' is that of the all_gathers alone: reduce_scatters count, too.": partial(_hidden, of=KINDS[:1]),
    "'hidden' is that of the reduce_scatters alone: all_gathers count, too.": partial(_hidden, of=KINDS[1:]),
    "'hidden' is that of all collectives: only all_gathers and reduce_scatters count.": partial(_hidden, of=("",)),
    "'hidden' is found event by event: where two are under way at once, the moment counts twice.": partial(
        _hidden, united=False
    ),
}


# ------------------------------------------------------------------------------------------------------- of the unit


def _longest(trace: dict, **how) -> dict:
    times = gathers_of_units(trace, **how)
    return {"unit": max(times, key=times.get)}


def _of_both_kinds(trace: dict) -> dict:
    computes = moments(trace, "compute")
    both = {u: union([x for kind in KINDS for x in single(trace, "link", kind, u)]) for u in UNITS}
    return {"unit": max(UNITS, key=lambda u: length(without(both[u], computes)))}


def _longest_single(trace: dict) -> dict:
    computes = moments(trace, "compute")
    each = {u: [length(without([x], computes)) for x in single(trace, "link", "all_gather", u)] for u in UNITS}
    return {"unit": max(UNITS, key=lambda u: max(each[u], default=0.0))}


def _most_gathers(trace: dict) -> dict:
    return {"unit": max(UNITS, key=lambda u: len(single(trace, "link", "all_gather", u)))}


def one_unit_at_a_time(trace: dict, newest: bool = False) -> dict:
    """Count a moment for one unit alone where all_gathers of several are under way: the newest, or the first listed."""
    start, end = bounds(trace)
    gathers = [e for e in of_its_rank(trace)["events"] if e["cat"] == "link" and e["name"].startswith("all_gather")]
    edges = sorted({min(max(t, start), end) for e in gathers for t in (e["ts"], e["ts"] + e["dur"])})
    computes, found = moments(trace, "compute"), dict.fromkeys(UNITS, 0.0)
    for piece in pairwise(edges):
        here = [e for e in gathers if e["ts"] <= piece[0] and e["ts"] + e["dur"] >= piece[1]]
        if here:
            one = max(here, key=lambda e: e["ts"]) if newest else here[0]
            found[one["args"]["unit"]] += length(without([piece], computes))
    return {"unit": max(found, key=found.get)}


def _unit_of_whole_trace(trace: dict) -> dict:
    mine = [e for e in of_its_rank(trace)["events"] if e["cat"] != "step"]
    begin, end = min(e["ts"] for e in mine), max(e["ts"] + e["dur"] for e in mine)
    step = {"ph": "X", "cat": "step", "name": f"step {trace['step']}", "pid": trace["rank"], "args": {}}
    return _longest(trace | {"events": [*mine, step | {"ts": begin, "dur": end - begin}]}, exposed=True)


def _named_alike(trace: dict) -> dict:
    """Take gathers of "blocks.10" for those of "blocks.1"."""
    computes = moments(trace, "compute")
    gathers = {u: moments(trace, "link", f"all_gather {u}") for u in UNITS}
    return {"unit": max(UNITS, key=lambda u: length(without(gathers[u], computes)))}


OF_UNIT: dict[str, Mistake] = {
    "'unit' is the one whose all_gathers take longest, hidden or not: asked is what is exposed of them.": partial(
        _longest, exposed=False
    ),
    "'unit' is found by adding up all_gathers one by one: two of a unit at once count once.": partial(
        _longest, exposed=True, union_of=False
    ),
    "'unit' counts a moment for one unit alone: where all_gathers of two are under way, both are waited for.": (
        one_unit_at_a_time
    ),
    "'unit' counts a moment for the unit whose all_gather began last: those under way before are waited for, too.": (
        partial(one_unit_at_a_time, newest=True)
    ),
    "'unit' is found from spans of the category 'wait': asked are those of the category 'link'.": partial(
        _longest, exposed=False, category="wait"
    ),
    "'unit' is found from all_gathers and reduce_scatters: asked is whose all_gathers are waited for.": _of_both_kinds,
    "'unit' is the one with the longest single all_gather: asked is the time of all of them.": _longest_single,
    "'unit' is the one with the most all_gathers: asked is the one with the longest time.": _most_gathers,
    "'unit' takes the all_gathers of blocks.10 for those of blocks.1, too.": _named_alike,
    "'unit' is the one that all ranks together wait for longest: one rank was asked for (pid).": partial(
        _some, _all_ranks, ("unit",)
    ),
    "'unit' is found in another rank's step (pid).": partial(_some, _first_ranks_step, ("unit",)),
    "'unit' is found without the all_gathers that cross the step's edges.": partial(_some, _only_inside, ("unit",)),
    "'unit' is the one that is waited for longest in the whole trace: one step was asked for.": _unit_of_whole_trace,
}
