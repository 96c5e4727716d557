"""Lesson 12's reading of a trace: its all_gathers and reduce_scatters, their share of the step, and who called them.

print(markdown(communication(read_profile(prof))))
"""

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

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


_OF_INTEREST = ("torch/autograd", "torch/distributed", "torch/_tensor")
_PLUMBING = ("wrapper", "_wrap", "_fn", "__call__", "decorate_context")


def callers(trace: Path, endings: tuple[str, ...]) -> list[str]:
    """Return the Python calls around the first c10d operation whose name ends so, outermost first.

    `trace` was recorded with `with_stack=True`. Only torch's own calls without wrappers, and cells of a notebook.
    """
    events = [e for e in json.loads(trace.read_text())["traceEvents"] if "dur" in e]
    call = next(e for e in events if e["name"].startswith("c10d::") and e["name"].endswith(endings))
    around = [
        e
        for e in events
        if (e.get("cat"), e["tid"]) == ("python_function", call["tid"])
        and e["ts"] <= call["ts"]
        and e["ts"] + e["dur"] >= call["ts"] + call["dur"]
    ]
    names = [e["name"] for e in sorted(around, key=lambda e: (e["ts"], -e["dur"]))]
    torchs = [n for n in names if n.startswith(_OF_INTEREST) and not n.endswith(_PLUMBING) or "ipykernel" in n]
    return [n.split("/")[-1] if "ipykernel" in n else n.removeprefix("torch/") for n in torchs]
