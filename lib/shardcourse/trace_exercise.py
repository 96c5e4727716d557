"""The exercise of lesson 12: find all_gather and reduce_scatter in a trace, and their share of the step.

print(markdown(communication(read_profile(prof))))
"""

from collections import Counter
from dataclasses import dataclass

from shardtrace.timeline import Timeline


@dataclass(frozen=True)
class Share:
    """All collectives of one kind on one rank. See [Note: exposed and overlapped] in `timeline` for the seconds."""

    kind: str  # "all_gather", ...; "all" for all kinds together
    count: int
    bytes: int  # sum of the unsharded sizes
    total_s: float  # while at least one was in progress
    exposed_s: float  # the part of total_s in which the rank did not compute
    share: float  # total_s / duration of the whole timeline
    exposed_share: float


def communication(timeline: Timeline) -> list[Share]:
    """Return a row for each kind, longest first, and one for all, in which time that two kinds share counts once.

    For several steps, the rows hold sums over them; `timeline.within(start_s, end_s)` cuts out one step.
    """
    kinds = Counter(s.name for s in timeline.lane("link"))
    rows = [_share(timeline, kind, kind, count) for kind, count in kinds.items()]
    rows.sort(key=lambda row: -row.total_s)
    return [*rows, _share(timeline, "all", None, kinds.total())]


def _share(timeline: Timeline, name: str, kind: str | None, count: int) -> Share:
    size = sum(s.bytes for s in timeline.lane("link") if kind in (None, s.name))
    total_s, exposed_s, whole_s = timeline.time_of(kind), timeline.exposed_of(kind), timeline.duration_s or 1.0
    return Share(name, count, size, total_s, exposed_s, total_s / whole_s, exposed_s / whole_s)


def markdown(rows: list[Share]) -> str:
    """Return the rows as a Markdown table, for a notebook's `Markdown` or a terminal."""
    lines = [
        "| collective | count | MB | total, ms | exposed, ms | share of the step | exposed share |",
        "|:--|--:|--:|--:|--:|--:|--:|",
    ]
    for r in rows:
        times = f"{r.total_s * 1e3:.1f} | {r.exposed_s * 1e3:.1f} | {r.share:.0%} | {r.exposed_share:.0%}"
        lines.append(f"| {r.kind} | {r.count} | {r.bytes / 1e6:.2f} | {times} |")
    return "\n".join(lines)
