"""Timeline of one rank: when it computed, when its links were busy, when it waited. Plain data, and sums over it.

Vocabulary. A *span* is an interval in one of four *lanes*: "compute" (the rank computes), "link" (a collective is
running, from the moment when its last rank has arrived and the link is free), "wait" (the host is blocked until a
collective finishes), "copy" (a GPU copies or fills memory, which is no computation). A *unit* is the part of the model
that a span belongs to: a block or, for a collective, the parameter group or bucket that it serves.

[Note: exposed and overlapped] Communication is *overlapped* while this rank computes and *exposed* while it does not.
Both are lengths of sets of moments: C, when at least one of the rank's collectives is running (two at once count
once), and A, when the rank computes.

    communication = |C|    overlapped = |C and A|    exposed = |C without A|    communication = overlapped + exposed

Only the exposed part makes a step longer; a schedule can at best hide all of it. A wait is not communication: before a
collective starts, a rank may wait for a slower one while its links are idle.

`record_timeline` makes timelines of a run, `read_profile` reads them from torch.profiler's traces.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

Interval = tuple[float, float]


@dataclass(frozen=True)
class Span:
    lane: str  # "compute", "link", "wait" or "copy"
    name: str  # "forward", "backward", "recompute", "optimizer"; "all_gather", ...; "HtoD"; waits: `record_timeline`
    start_s: float  # time.monotonic(): one clock for all ranks of a machine
    end_s: float
    unit: str = ""  # "blocks.3", "root", "bucket 0"
    bytes: int = 0  # of a collective: the unsharded size; of a copy: what is copied
    issued_s: float | None = None  # for a collective: when this rank asked for it
    ready_s: float | None = None  # for a collective: when the last rank asked, if that is known

    @property
    def duration_s(self) -> float:
        return self.end_s - self.start_s


@dataclass(frozen=True)
class Timeline:
    """All spans of one rank, ordered by start. See [Note: exposed and overlapped]; all sums are in seconds."""

    rank: int
    spans: tuple[Span, ...]

    @property
    def start_s(self) -> float:
        return min((s.start_s for s in self.spans), default=0.0)

    @property
    def end_s(self) -> float:
        return max((s.end_s for s in self.spans), default=0.0)

    @property
    def duration_s(self) -> float:
        return self.end_s - self.start_s

    @property
    def compute_s(self) -> float:
        return _length(self._when("compute"))

    @property
    def communication_s(self) -> float:
        return self.time_of()

    @property
    def exposed_s(self) -> float:
        return self.exposed_of()

    @property
    def overlapped_s(self) -> float:
        return self.communication_s - self.exposed_s

    @property
    def wait_s(self) -> float:
        return _length(self._when("wait"))

    def time_of(self, kind: str | None = None) -> float:
        """Seconds in which at least one collective (of this kind) was running."""
        return _length(self._when("link", kind))

    def exposed_of(self, kind: str | None = None) -> float:
        """Seconds of `time_of(kind)` in which the rank did not compute."""
        return _length(without(self._when("link", kind), self._when("compute")))

    def share(self, kind: str | None = None) -> float:
        """`time_of(kind)` divided by the timeline's duration: 0 to 1."""
        return self.time_of(kind) / self.duration_s if self.duration_s else 0.0

    def lane(self, lane: str) -> tuple[Span, ...]:
        return tuple(s for s in self.spans if s.lane == lane)

    def within(self, start_s: float, end_s: float) -> "Timeline":
        """The part between two moments, e.g. one step; spans that cross a moment are cut."""
        cut = (replace(s, start_s=max(s.start_s, start_s), end_s=min(s.end_s, end_s)) for s in self.spans)
        return Timeline(self.rank, tuple(s for s in cut if s.start_s < s.end_s))

    def _when(self, lane: str, name: str | None = None) -> list[Interval]:
        return union((s.start_s, s.end_s) for s in self.spans if s.lane == lane and name in (None, s.name))


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """Merge intervals that overlap; return disjoint ones in order."""
    found: list[Interval] = []
    for start, end in sorted(intervals):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((start, end))
    return found


def without(these: list[Interval], those: list[Interval]) -> list[Interval]:
    """Return the moments of `these` that are not in `those`; both are disjoint and in order."""
    left, i = [], 0
    for start, end in these:
        while i < len(those) and those[i][1] <= start:
            i += 1
        j = i
        while j < len(those) and those[j][0] < end:
            if start < those[j][0]:
                left.append((start, those[j][0]))
            start, j = max(start, those[j][1]), j + 1
        if start < end:
            left.append((start, end))
    return left


def _length(intervals: list[Interval]) -> float:
    return sum(end - start for start, end in intervals)
