"""Report the last collectives of a job that hangs: which rank is in which one, and which ranks to look at.

It reads the records of `flight_recorder`: those of a launch, or the dumps of a whole cluster. A collective ends only
when every rank of its group has called it. So a job that hangs has a collective that some ranks have called and others
have not. Look at the ranks that have not, unless they wait for others themselves. If all ranks have called it and some
have finished it, look at the GPUs of the others.

    print(stuck_collectives({rank: read_dump(f"dumps/nccl_trace_rank_{rank}") for rank in range(16)}))
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from shardlab.launch.flight_recorder import POINT_TO_POINT, Collective, Log

_STUCK = "<- stuck"
_DEFAULT_GROUP = "0"  # all ranks belong to it
_FEW = 3  # so many stuck groups are all shown

Logs = Mapping[int, Sequence[Collective]]


def stuck_collectives(by_rank: Logs, last: int = 5) -> str:
    """Return a table of the last collectives and who waits for whom, for each stuck process group; "" if none is stuck.

    If more than one group is stuck, a last paragraph says which ranks to look at; of many groups only those are shown
    that tell it. `by_rank` holds the logs of the ranks that answered.
    """
    groups = _stuck_groups(by_rank)
    waits = {r: f"#{seq} of group {g.name}" for g in groups for seq, r in g.waiting_calls()}
    shown = groups if len(groups) <= _FEW else _telling(groups)
    parts = [g.text(last, waits) for g in shown]
    if len(groups) > 1:
        parts.append(_verdict_over(groups, [g.name for g in groups if g not in shown]))
    return "\n\n".join(parts)


def faulty_ranks(by_rank: Logs) -> list[int]:
    """Return the ranks to look at: others wait for them while they wait for nobody, or finished what they have not."""
    return sorted({r for g in _stuck_groups(by_rank) for r in (*g.absent, *g.left_behind)})


class _Group:
    """Collectives of one process group on one backend, and the first of them, `stuck`, that is not over (or None)."""

    def __init__(self, name: str, calls: dict[int, dict[int, Collective]], by_rank: Logs, progress: dict) -> None:
        self.name, self.calls, self.progress = name, calls, progress
        self.members = sorted({r for ranks in calls.values() for r, c in ranks.items() for r in (r, *c.members)})
        self.asked = [r for r in self.members if r in by_rank]
        self.reached = {r: progress.get(r, (0, 0))[0] for r in self.asked}  # each rank's last call
        for seq, ranks in calls.items():
            self.reached |= {r: max(seq, self.reached[r]) for r in ranks}
        self.stuck = next((seq for seq in sorted(calls) if self.missing(seq) or self.waiting(seq)), None)
        self.absent, self.left_behind = [], []  # ranks at fault: they called nothing more; they stopped in a call
        if self.stuck is not None:
            idle = [r for r in self.missing(self.stuck) if all(c.state == "finished" for c in by_rank[r])]
            alike = len({c.agreed for c in calls[self.stuck].values()}) == 1
            self.absent = idle
            if alike and not self.missing(self.stuck) and self.finished(self.stuck):
                self.left_behind = self.waiting(self.stuck)

    def missing(self, seq: int) -> list[int]:
        """Ranks that have not called `seq`. A rank that called a later one has only lost its record of `seq`."""
        return [r for r in self.asked if self.reached[r] < seq]

    def waiting(self, seq: int) -> list[int]:
        return [r for r, c in self.calls[seq].items() if c.state != "finished"]

    def finished(self, seq: int) -> list[int]:
        recorded = {r for r, c in self.calls[seq].items() if c.state == "finished"}
        return sorted(recorded | {r for r in self.asked if self.progress.get(r, (0, 0))[1] >= seq})

    def waiting_calls(self) -> list[tuple[int, int]]:
        """List (seq, rank) of unfinished calls, latest first: a dict by rank then keeps each rank's first one."""
        return sorted(((seq, r) for seq in self.calls for r in self.waiting(seq)), reverse=True)

    def text(self, last: int, waits: dict[int, str]) -> str:
        seqs = sorted(self.calls)
        first = max(0, min(seqs.index(self.stuck) - last // 2, len(seqs) - last))
        rows = [row for seq in seqs[first : first + last] for row in self._rows(seq)]
        rows = [(*row[:5], _STUCK if row[0] == f"#{self.stuck}" else "") for row in rows]
        title = f"the last collectives of group {self.name} (ranks {runs(self.members)}):"
        return "\n".join([title, *_aligned(rows), self._verdict(waits)])

    def _rows(self, seq: int) -> list[tuple[str, ...]]:
        """Return one row; or, if the ranks disagree, one row for each different call."""
        rows: list[tuple[str, ...]] = []
        called, by_status = self.calls[seq], [r for r in self.finished(seq) if r not in self.calls[seq]]
        for agreed in dict.fromkeys(c.agreed for c in called.values()):
            same = [r for r, c in called.items() if c.agreed == agreed]
            waiting = [r for r in same if r in self.waiting(seq)]
            through = [r for r in same if r not in waiting] + (by_status if not rows else [])
            missing = self.missing(seq) if not rows else []
            rows.append((f"#{seq}", called[same[0]].signature, *map(runs, (through, waiting, missing))))
        return rows

    def _verdict(self, waits: dict[int, str]) -> str:
        missing, waiting = self.missing(self.stuck), self.waiting(self.stuck)
        unknown = [r for r in self.members if r not in self.asked]
        what = f"{named(waiting)} {'waits' if len(waiting) == 1 else 'wait'} in #{self.stuck}"
        if missing:
            return f"{what} for {named(missing)}. " + " ".join(self._instead(r, waits) for r in missing)
        if len({c.agreed for c in self.calls[self.stuck].values()}) > 1:
            return f"{what}, but called different collectives"
        if self.left_behind:
            suspect = "GPU" if self.calls[self.stuck][waiting[0]].backend == "nccl" else "connection"
            through = f"which {named(self.finished(self.stuck))} finished"
            return f"{what}, {through}: its peers are through, look at the {suspect} of {named(waiting)}"
        if unknown:
            return f"{what}; nothing is known of {named(unknown)}"
        return f"{what}; every rank has called it: it is under way, or its peers' connection is gone"

    def _instead(self, rank: int, waits: dict[int, str]) -> str:
        if rank in waits:
            return f"Rank {rank} itself waits in {waits[rank]}."
        if not self.reached[rank]:
            return f"Rank {rank} has called nothing in this group."
        last = self.calls.get(self.reached[rank], {}).get(rank)
        if last is None:
            return f"The last that rank {rank} called is #{self.reached[rank]}, and it is over."
        return f"The last that rank {rank} called is #{last.seq} {last.signature} at {last.where or '?'}."


def _stuck_groups(by_rank: Logs) -> list[_Group]:
    """The groups with a collective that is not over, in the order of their names."""
    calls: dict[tuple[str, str], dict[int, dict[int, Collective]]] = {}
    for rank, log in by_rank.items():
        for c in _without_messages(log):
            calls.setdefault((c.group, c.backend), {}).setdefault(c.seq, {})[rank] = c
    names, found = Counter(group for group, _ in calls), []
    for group, backend in sorted(calls, key=lambda key: (len(key[0]), key)):
        progress = _progress(by_rank, backend, group)
        name = group if names[group] == 1 else f"{group} on {backend}"
        found.append(_Group(name, calls[group, backend], by_rank, progress))
    return [g for g in found if g.stuck is not None]


def _progress(by_rank: Logs, backend: str, group: str) -> dict[int, tuple[int, int]]:
    """Each rank's progress in the group; none if a rank's own calls show that messages are counted in it."""
    of_rank = {rank: log.progress for rank, log in by_rank.items() if isinstance(log, Log)}
    callers = {rank for rank in of_rank for c in by_rank[rank] if (c.backend, c.group) == (backend, group)}
    if any((backend, group) not in of_rank[rank] for rank in callers):
        return {}
    return {rank: known[backend, group] for rank, known in of_rank.items() if (backend, group) in known}


def _telling(groups: list[_Group]) -> list[_Group]:
    """The fewest groups that show all ranks at fault; the first ones if there are no such ranks."""
    found: list[_Group] = []
    known: set[int] = set()
    for g in sorted(groups, key=lambda g: -len({*g.absent, *g.left_behind})):
        if not known.issuperset({*g.absent, *g.left_behind}):
            found.append(g)
            known.update(g.absent, g.left_behind)
    return found or groups[:_FEW]


def _verdict_over(groups: list[_Group], others: list[str]) -> str:
    absent = sorted({r for g in groups for r in g.absent})
    behind = sorted({r for g in groups for r in g.left_behind} - set(absent))
    them, they_wait = ("them", "they wait") if len(absent) > 1 else ("it", "it waits")
    text = [f"Look at {named(absent)}: others wait for {them}, and {they_wait} for nobody."] if absent else []
    text += [f"Look at the GPU of {named(behind)}: others finished what is still running there."] if behind else []
    text = text or ["No rank stands out: each waits for others."]
    return " ".join(["Over all groups:", *text, *([f"Groups {', '.join(others)} are stuck, too."] if others else [])])


def _aligned(rows: list[tuple[str, ...]]) -> list[str]:
    table = [("", "collective", "finished", "waiting", "missing", ""), *rows]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return ["  " + "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in table]


def first_disagreement(by_rank: dict[int, list[Collective]]) -> tuple[str, int | None] | None:
    """Describe the first collective on which the ranks differ; return this text and the one rank that differs.

    Ranks must issue the same collectives in the same order on a group. If they do not, the job hangs or, worse, mixes
    up tensors. The sequence number tells where this began. None if they agree; rank None if no single one differs.
    """
    calls: dict[tuple[str, str, int], dict[int, Collective]] = {}
    for rank, log in by_rank.items():
        for c in _without_messages(log):
            calls.setdefault((c.backend, c.group, c.seq), {})[rank] = c
    for (_, _, seq), ranks in sorted(calls.items(), key=lambda item: item[0][2]):
        counts = Counter(c.agreed for c in ranks.values())
        if len(counts) > 1:
            said = "; ".join(f"rank {r}: {c.signature} at {c.where or '?'}" for r, c in sorted(ranks.items()))
            alone = [r for r, c in ranks.items() if counts[c.agreed] == 1]
            odd = alone[0] if len(alone) == 1 and len(ranks) > 2 else None
            return f"the ranks disagree from collective #{seq} on: {said}", odd
    return None


def laggard(by_rank: dict[int, list[Collective]]) -> int | None:
    """Return the one rank that has issued fewer collectives than all others of a group, so that they wait for it."""
    backends = {c.backend for log in by_rank.values() for c in log} or {"gloo"}
    issued = {(backend, _DEFAULT_GROUP): dict.fromkeys(by_rank, 0) for backend in sorted(backends)}
    for rank, log in by_rank.items():
        for c in _without_messages(log):
            issued.setdefault((c.backend, c.group), {})[rank] = c.seq
    for by_member in issued.values():
        behind = [r for r, seq in by_member.items() if seq == min(by_member.values())]
        if len(behind) == 1 < len(by_member):
            return behind[0]
    return None


def _without_messages(log: list[Collective]) -> list[Collective]:
    return [c for c in log if c.kind not in POINT_TO_POINT]


def named(ranks: Iterable[int]) -> str:
    """Return ranks in words: "rank 2", "ranks 0, 1", "ranks 0-2, 5"."""
    numbers = set(ranks)
    return f"rank{'s' * (len(numbers) > 1)} {runs(numbers)}"


def runs(ranks: Iterable[int]) -> str:
    """Return rank numbers as text: "0-2, 5, 6" for [0, 1, 2, 5, 6]."""
    found: list[list[int]] = []
    for r in sorted(ranks):
        if found and r == found[-1][-1] + 1:
            found[-1].append(r)
        else:
            found.append([r])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in found)
