"""Usual mistakes in reading a trace: the wrong figures of each, to compare with what a submission finds."""

from grading.checks.errors_with_nan import largest
from grading.checks.lab6_profile.traces import SHARES, bounds, figures_of, gathers_of_units, length, moments
from shardtrace.timeline import union, without

TOLERANCE = 1e-3
N_PLAIN = 3  # the first of the drawn traces are plain


def of_shares(found: list[dict], drawn: list[dict]) -> str:
    """Return the words of the first mistake that explains the shares in all crowded traces, or else in all plain ones.

    The plain traces help if several mistakes come together.
    """
    of_traces = list(zip(found, drawn, strict=True))
    for some in (of_traces[N_PLAIN:], of_traces[:N_PLAIN]):
        for words, figures in MISTAKES.items():
            shows = any(not _near(figures_of(trace), figures(trace)) for _, trace in some)
            if shows and all(_near(one, figures(trace)) for one, trace in some):
                return words
    off = {k: largest(abs(f[k] - figures_of(t)[k]) for f, t in zip(found, drawn, strict=True)) for k in SHARES}
    wrong_keys = ", ".join(repr(k) for k, e in off.items() if e > TOLERANCE)
    return f"{wrong_keys} differ from what the trace says."


def _near(found: dict, wrong: dict) -> bool:
    return all(abs(found[k] - w) <= TOLERANCE for k, w in wrong.items())


def _summed(trace: dict) -> dict:
    """Add up the durations inside the step."""
    start, end = bounds(trace)
    cut = [
        (e, min(end, e["ts"] + e["dur"]) - max(start, e["ts"]))
        for e in trace["events"]
        if e["ph"] == "X" and e["pid"] == trace["rank"]
    ]
    total = {
        kind: sum(max(0.0, t) for e, t in cut if e["cat"] == "link" and e["name"].startswith(kind))
        for kind in SHARES[1:3]
    }
    return {kind: t / (end - start) for kind, t in total.items()}


def _exposed_each(trace: dict) -> dict:
    """Add up the exposed time of each event."""
    start, end = bounds(trace)
    computes, total = moments(trace, "compute"), dict.fromkeys(SHARES[1:3], 0.0)
    for e in trace["events"]:
        kind = e["name"].split()[0]
        if e["ph"] == "X" and e["pid"] == trace["rank"] and e["cat"] == "link" and kind in total:
            a, b = max(start, e["ts"]), min(end, e["ts"] + e["dur"])
            total[kind] += length(without([(a, b)], computes)) if a < b else 0.0
    return {kind: t / (end - start) for kind, t in total.items()}


def _under_way(trace: dict) -> dict:
    start, end = bounds(trace)
    return {"all_gather": length(moments(trace, "link", "all_gather")) / (end - start)}


def _waited(trace: dict) -> dict:
    start, end = bounds(trace)
    return {"all_gather": length(moments(trace, "wait", "all_gather")) / (end - start)}


def _waited_exposed(trace: dict) -> dict:
    start, end = bounds(trace)
    waits = without(moments(trace, "wait", "all_gather"), moments(trace, "compute"))
    return {"all_gather": length(waits) / (end - start)}


def _twice(trace: dict) -> dict:
    start, end = bounds(trace)
    computes = moments(trace, "compute")
    return {k: length(without(moments(trace, "link", k), computes)) / (end - start) for k in SHARES[1:3]}


def _of_the_whole_trace(trace: dict) -> dict:
    start, end = bounds(trace)
    timed = [e for e in trace["events"] if e["ph"] == "X"]
    whole = max(e["ts"] + e["dur"] for e in timed) - min(e["ts"] for e in timed)
    return {k: figures_of(trace)[k] * (end - start) / whole for k in SHARES[:3]}


def _of_communication(trace: dict) -> dict:
    start, end = bounds(trace)
    both = length(union([*moments(trace, "link", "all_gather"), *moments(trace, "link", "reduce_scatter")]))
    return {k: figures_of(trace)[k] * (end - start) / both for k in SHARES[1:3]}


def _all_ranks(trace: dict) -> dict:
    merged = [e if e["ph"] != "X" or e["cat"] == "step" else e | {"pid": trace["rank"]} for e in trace["events"]]
    return {k: figures_of(trace | {"events": merged})[k] for k in SHARES[:3]}


def _uncut(trace: dict) -> dict:
    """Take events that begin in the step, up to their own end."""
    start, end = bounds(trace)
    inside = [e for e in trace["events"] if e["ph"] == "X" and e["pid"] == trace["rank"] and start <= e["ts"] < end]
    computes, gathers = (
        union((e["ts"], e["ts"] + e["dur"]) for e in inside if e["cat"] == c and e["name"].startswith(kind))
        for c, kind in (("compute", ""), ("link", "all_gather"))
    )
    shares = {"computes": length(computes), "all_gather": length(without(gathers, computes))}
    return {k: t / (end - start) for k, t in shares.items()}


MISTAKES = {
    "'all_gather' and 'reduce_scatter' are all the time that they are under way, also beside computing: only what has "
    "no computing beside it is waited for.": _under_way,
    "'all_gather' and 'reduce_scatter' are durations added up: two collectives under way at once count twice, and so "
    "does what lies beside computing.": _summed,
    "exposed times are added up event by event: two collectives under way at once count twice. Unite them first.": (
        _exposed_each
    ),
    "these are spans of the category 'wait', which says when the host is blocked: asked is when a collective is under "
    "way and nothing computes.": _waited,
    "these are spans of the category 'wait' beside no computing: asked are those of the category 'link'.": (
        _waited_exposed
    ),
    "moments in which an all_gather and a reduce_scatter are under way count in both: they belong to the all_gather.": (
        _twice
    ),
    "the denominator is the whole trace: it should be the step that was asked for.": _of_the_whole_trace,
    "the denominator is the time of communication: it should be the step's.": _of_communication,
    "the events of all ranks are taken together: one rank was asked for (pid).": _all_ranks,
    "events that cross the step's edges are not cut: only the part inside of the step counts.": _uncut,
}


def of_unit(found: list[dict], drawn: list[dict]) -> str:
    def all_are(**how) -> bool:
        times = [gathers_of_units(t, **how) for t in drawn]
        return all(f["unit"] == max(t, key=t.get) for f, t in zip(found, times, strict=True))

    if all_are(exposed=False):
        return "'unit' is the one whose all_gathers take longest, hidden or not: asked is what is exposed of them."
    if all_are(union_of=False, exposed=True):
        return "'unit' is found by adding up all_gathers one by one: two of a unit at once count once."
    return "'unit' is not the one whose all_gathers are exposed longest in this step, on this rank."


def of_hidden(found: list[dict], drawn: list[dict]) -> str:
    right = [figures_of(t)["hidden"] for t in drawn]
    if all(abs(f["hidden"] - (1 - r)) <= TOLERANCE for f, r in zip(found, right, strict=True)):
        return "'hidden' is the exposed part: it should be the part that lies beside computing."
    if all(abs(f["hidden"] - _hidden_of_step(t)) <= TOLERANCE for f, t in zip(found, drawn, strict=True)):
        return "'hidden' is a share of the step: it should be a share of the time of communication."
    return "'hidden' is not the share of communication's time (both kinds united) in which the rank computes."


def _hidden_of_step(trace: dict) -> float:
    start, end = bounds(trace)
    both = union([*moments(trace, "link", "all_gather"), *moments(trace, "link", "reduce_scatter")])
    return figures_of(trace)["hidden"] * length(both) / (end - start)
