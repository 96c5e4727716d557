"""Write timelines to a file for ui.perfetto.dev or chrome://tracing: one process per rank, one thread per lane.

An arrow leads from the moment at which the host asks for a collective to the collective. All ranks share one clock.
Collectives that run at the same time get separate threads, since the events of one thread must nest.

[Note: thread ids] Perfetto identifies a thread by its id alone, whatever its process. It takes id 0 for the idle
thread, and a process's own id for its main thread. So ids here differ over all ranks, and are none of these.

Source: Chromium's "Trace Event Format": complete events (X), flow events (s, f), counters (C), metadata (M).
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path

from shardtrace.timeline import Span, Timeline

_COMPUTE, _WAIT, _LINK = 0, 1, 2  # lanes; further links get the next numbers
_LANES = 1000  # more than a rank has
_LATE_S = 0.5e-3  # the thread that notes a collective's end may wake up after the next start


def write_trace(path: str | Path, timelines: Sequence[Timeline]) -> None:
    """Write all ranks into one JSON file; time 0 is the earliest moment of any rank."""
    Path(path).write_text(json.dumps({"traceEvents": list(trace_events(timelines)), "displayTimeUnit": "ms"}))


def trace_events(timelines: Sequence[Timeline]) -> Iterator[dict]:
    """Yield the events of a trace file; `ts` and `dur` are in microseconds."""
    start_s = min((t.start_s for t in timelines), default=0.0)
    flows = count()
    for timeline in timelines:
        clock = _Clock(timeline.rank, start_s)
        host = [s for s in timeline.spans if s.lane in ("compute", "wait")]
        links = _lanes(timeline.lane("link"))
        copies = _lanes(timeline.lane("copy"), first=1 + max(links, default=_LINK), late_s=0.0)
        yield from _names(timeline.rank, max(links, default=_LINK) - _LINK, len(copies))
        for s in host:
            yield clock.complete(s, _COMPUTE if s.lane == "compute" else _WAIT)
        for lane, spans in copies.items():
            yield from (clock.complete(s, lane) for s in spans)
        for lane, spans in links.items():
            for s in spans:
                yield clock.complete(s, lane)
                yield from _arrow(clock, s, lane, host, next(flows))
        yield from _bytes_under_way(clock, timeline.lane("link"))


class _Clock:
    """Makes the events of one rank, with times in microseconds since `start_s`."""

    def __init__(self, rank: int, start_s: float) -> None:
        self.rank, self.start_s = rank, start_s

    def event(self, phase: str, lane: int, at_s: float, **fields) -> dict:
        ts = (at_s - self.start_s) * 1e6
        return {"ph": phase, "pid": self.rank, "tid": _thread_id(self.rank, lane), "ts": ts, **fields}

    def complete(self, s: Span, lane: int) -> dict:
        name = f"{s.name} {s.unit}".rstrip()
        args: dict[str, object] = {"unit": s.unit}
        if s.issued_s is not None:
            args |= {"bytes": s.bytes, "issued to start, us": (s.start_s - s.issued_s) * 1e6}
        return self.event("X", lane, s.start_s, dur=s.duration_s * 1e6, name=name, cat=s.lane, args=args)


def _thread_id(rank: int, lane: int) -> int:
    """Id of a lane's thread; see [Note: thread ids]."""
    return (rank + 1) * _LANES + lane


def _names(rank: int, more_links: int, copies: int) -> Iterator[dict]:
    names = ["compute", "wait", "link", *(f"link {i + 2}" for i in range(more_links)), *["copy"] * copies]
    yield {"ph": "M", "pid": rank, "name": "process_name", "args": {"name": f"rank {rank}"}}
    yield {"ph": "M", "pid": rank, "name": "process_sort_index", "args": {"sort_index": rank}}
    for lane, name in enumerate(names):
        thread = _thread_id(rank, lane)
        yield {"ph": "M", "pid": rank, "tid": thread, "name": "thread_name", "args": {"name": name}}
        yield {"ph": "M", "pid": rank, "tid": thread, "name": "thread_sort_index", "args": {"sort_index": lane}}


def _lanes(links: Sequence[Span], first: int = _LINK, late_s: float = _LATE_S) -> dict[int, list[Span]]:
    """Put each collective, or copy, into the first lane that is free; a span may end up to `late_s` too late."""
    lanes: dict[int, list[Span]] = {}
    for s in sorted(links, key=lambda s: s.start_s):
        free = (lane for lane in count(first) if lane not in lanes or lanes[lane][-1].end_s - late_s <= s.start_s)
        lane = lanes.setdefault(next(free), [])
        if lane and lane[-1].end_s > s.start_s:
            lane[-1] = replace(lane[-1], end_s=s.start_s)
        lane.append(s)
    return lanes


def _arrow(clock: _Clock, s: Span, lane: int, host: Sequence[Span], flow: int) -> Iterator[dict]:
    """Yield an arrow from the host's span to the collective; nothing if the host's span is unknown."""
    asking = next((h for h in host if s.issued_s is not None and h.start_s <= s.issued_s < h.end_s), None)
    if asking is None or s.issued_s > s.start_s:
        return
    fields = {"id": flow, "cat": "issue", "name": "issued"}
    yield clock.event("s", _COMPUTE if asking.lane == "compute" else _WAIT, s.issued_s, **fields)
    yield clock.event("f", lane, s.start_s, bp="e", **fields)


def _bytes_under_way(clock: _Clock, links: Sequence[Span]) -> Iterator[dict]:
    changes = sorted([(s.start_s, s.bytes) for s in links] + [(s.end_s, -s.bytes) for s in links])
    under_way = 0
    for at_s, change in changes:
        under_way += change
        yield clock.event("C", _LINK, at_s, name="bytes under way", args={"bytes": under_way})
