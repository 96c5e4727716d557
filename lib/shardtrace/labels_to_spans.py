"""Turn labels on the host and collectives on the links into the spans of a timeline, whatever recorded them.

At any moment the host does what the innermost label around that moment says (`leaves`). A collective serves the unit
whose label surrounds the moment when the host asked for it. The collectives of DDP and ZeRO have no such label; their
buckets are sent in a fixed order in every backward, so we number them.
"""

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

from shardtrace.range_labels import meaning
from shardtrace.timeline import Span, Timeline

_TRIFLE_S = 50e-6  # to ask whether a collective has finished takes as long
_FSDP = ("FSDP::", "FullyShardedDataParallel._")


class Label(NamedTuple):
    """One `record_function` on the host. Labels of one thread are nested or disjoint."""

    name: str
    start_s: float
    end_s: float


class Sent(NamedTuple):
    """One collective of this rank."""

    kind: str
    bytes: int  # the unsharded size
    issued_s: float  # when this rank asked for it
    ready_s: float | None  # when the last rank did, if that is known
    started_s: float  # when the links were free, too
    finished_s: float


class Queued(NamedTuple):
    """Computation that the host gave to a device and did not wait for."""

    asked_s: float
    started_s: float
    finished_s: float


class Leaf(NamedTuple):
    """An interval during which the innermost label stays the same."""

    start_s: float
    end_s: float
    within: tuple[Label, ...]  # all labels around it, innermost last


Served = tuple[Sent, str]  # with the unit that it served


def timeline(rank: int, labels: Iterable[Label], sent: Iterable[Sent], queued: Iterable[Queued] = ()) -> Timeline:
    """Build the timeline of a host that computes itself; or, with `queued`, of the device that computes for it."""
    found = leaves(_without_trifles(labels))
    served = with_units(found, sent)
    compute = [compute_span(found, *one) for one in queued] or [s for leaf in found for s in _host_spans(leaf, served)]
    return ordered(rank, [*joined(compute), *link_spans(served)])


def compute_span(found: list[Leaf], asked_s: float, start_s: float, end_s: float) -> Span:
    """A span of computation, named by what the host was doing at `asked_s`."""
    leaf = leaf_at(found, asked_s)
    name, unit = activity(leaf) if leaf else ("", "")
    return Span("compute", name or "other", start_s, end_s, unit)


def ordered(rank: int, spans: Iterable[Span]) -> Timeline:
    return Timeline(rank, tuple(sorted(spans, key=lambda s: (s.start_s, s.end_s))))


def link_spans(served: Iterable[Served]) -> Iterator[Span]:
    for s, unit in served:
        yield Span("link", s.kind, s.started_s, s.finished_s, unit, s.bytes, s.issued_s, s.ready_s)


def wait_spans(found: list[Leaf], served: list[Served]) -> Iterator[Span]:
    """Yield the waits of a host whose computation is known from another source."""
    for leaf in found:
        if activity(leaf)[0] == "wait":
            yield from _wait(leaf.start_s, leaf.end_s, served)


def leaves(labels: Iterable[Label]) -> list[Leaf]:
    """Cut the host's time into intervals with the same labels, in order; leave out the time without labels."""
    found: list[Leaf] = []
    around: list[Label] = []
    now = -math.inf

    def until(moment: float) -> None:
        nonlocal now
        if around and moment > now:
            found.append(Leaf(now, moment, tuple(around)))
        now = max(now, moment)

    for label in sorted(labels, key=lambda label: (label.start_s, -label.end_s)):
        while around and around[-1].end_s <= label.start_s:
            until(around[-1].end_s)
            around.pop()
        until(label.start_s)
        around.append(label)
    while around:
        until(around[-1].end_s)
        around.pop()
    return found


def leaf_at(found: list[Leaf], moment: float) -> Leaf | None:
    i = bisect_right(found, moment, key=lambda leaf: leaf.start_s) - 1
    return found[i] if i >= 0 and moment <= found[i].end_s else None


def activity(leaf: Leaf) -> tuple[str, str]:
    """(what the host does, for which unit), by the innermost label that tells it."""
    said = [m for label in reversed(leaf.within) if (m := meaning(label.name))]
    name, unit = said[0] if said else ("", "")
    if name == "recompute" and not unit:
        unit = next((around for _, around in said if around), "")
    return name, unit


def with_units(found: list[Leaf], sent: Iterable[Sent]) -> list[Served]:
    """Each collective with its unit: "blocks.3", "root", "bucket 0", or "" for none; in the order of issue."""
    served: list[Served] = []
    backward, buckets = None, 0
    for s in sorted(sent, key=lambda s: s.issued_s):
        leaf = leaf_at(found, s.issued_s)
        within = leaf.within if leaf else ()
        group = next((label for label in reversed(within) if label.name.startswith(_FSDP)), None)
        this_backward = next((label for label in within if label.name.startswith("backward")), None)
        unit = meaning(group.name)[1] if group else ""
        if group is None and this_backward is not None:
            backward, buckets = this_backward, buckets + 1 if this_backward is backward else 0
            unit = f"bucket {buckets}"
        served.append((s, unit))
    return served


def _without_trifles(labels: Iterable[Label]) -> Iterator[Label]:
    return (label for label in labels if label.name != "wait" or label.end_s - label.start_s > _TRIFLE_S)


def _host_spans(leaf: Leaf, served: list[Served]) -> Iterator[Span]:
    name, unit = activity(leaf)
    if leaf.within[-1].name == "DDP::finalize":  # DDP waits in C++ for the last bucket, and then copies
        finished = [s.finished_s for s, _ in served if leaf.start_s < s.finished_s <= leaf.end_s]
        through = max(finished, default=leaf.start_s)
        yield from _wait(leaf.start_s, through, served)
        yield Span("compute", name, through, leaf.end_s, unit)
    elif name == "wait":
        yield from _wait(leaf.start_s, leaf.end_s, served)
    elif name:
        yield Span("compute", name, leaf.start_s, leaf.end_s, unit)


def _wait(start_s: float, end_s: float, served: list[Served]) -> list[Span]:
    """Cut a wait as [Note: waits] in `record_timeline` says. The host waits for the collective that finished last."""
    through = [(s, unit) for s, unit in served if start_s < s.finished_s <= end_s]
    if not through:  # in a side stream the host goes on as soon as all ranks have asked
        unit = next((unit for s, unit in served if s.ready_s and start_s < s.ready_s <= end_s), None)
        return [Span("wait", "other" if unit is None else "slower rank", start_s, end_s, unit or "")]
    s, unit = max(through, key=lambda one: one[0].finished_s)
    if s.ready_s is None:
        return [Span("wait", s.kind, start_s, end_s, unit)]
    ready_s, started_s = (min(max(moment, start_s), end_s) for moment in (s.ready_s, s.started_s))
    names = ((start_s, "slower rank"), (ready_s, "link taken"), (started_s, s.kind), (end_s, ""))
    return [Span("wait", name, a, b, unit) for (a, name), (b, _) in pairwise(names) if a < b]


def joined(spans: Iterable[Span]) -> list[Span]:
    """Merge neighbours that are alike; computation too short to be seen is merged with its neighbour."""
    found: list[Span] = []
    for s in spans:
        if s.end_s <= s.start_s:
            continue
        if found and _adjoin(last := found[-1], s):
            kept = s if last.duration_s < min(_TRIFLE_S, s.duration_s) else last
            found[-1] = replace(kept, start_s=last.start_s, end_s=s.end_s)
        else:
            found.append(s)
    return found


def _adjoin(last: Span, s: Span) -> bool:
    if last.end_s != s.start_s or last.lane != s.lane:
        return False
    is_trifle = s.lane == "compute" and min(last.duration_s, s.duration_s) < _TRIFLE_S
    return is_trifle or (last.name, last.unit) == (s.name, s.unit)
