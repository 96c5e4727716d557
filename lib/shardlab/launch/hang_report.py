"""Report the last collectives of a job that hangs: which rank is in which one, and which rank is missing.

It reads the records of `flight_recorder`, as you would read the dumps of a whole cluster. A collective ends only when
every rank of its group has called it. So a job that hangs has a collective that some ranks have called and others have
not. Look at the ranks that have not called it.
"""

from collections.abc import Mapping, Sequence

from shardlab.launch.flight_recorder import POINT_TO_POINT, Collective

Calls = dict[int, dict[int, Collective]]  # of one group: by sequence number and rank
_STUCK = "<- stuck"


def stuck_collectives(by_rank: Mapping[int, Sequence[Collective]], last: int = 5) -> str:
    """Return a table of the last collectives and who waits for whom, for each stuck process group; "" if none is stuck.

    `by_rank` holds the logs of the ranks that answered.
    """
    groups: dict[str, Calls] = {}
    for rank, log in by_rank.items():
        for c in log:
            if c.kind not in POINT_TO_POINT:
                groups.setdefault(c.group, {}).setdefault(c.seq, {})[rank] = c
    waits = {r: f"#{seq} of group {name}" for name, calls in groups.items() for seq, r in _waiting(calls)}
    parts = (_of_group(name, calls, by_rank, waits, last) for name, calls in sorted(groups.items()))
    return "\n\n".join(part for part in parts if part)


def _waiting(calls: Calls) -> list[tuple[int, int]]:
    """List (seq, rank) of unfinished calls, latest first: a dict by rank then keeps each rank's first one."""
    found = [(seq, r) for seq, ranks in calls.items() for r, c in ranks.items() if c.state != "finished"]
    return sorted(found, reverse=True)


def _of_group(name: str, calls: Calls, by_rank: Mapping, waits: dict[int, str], last: int) -> str:
    members = sorted({r for ranks in calls.values() for r, c in ranks.items() for r in (r, *c.members)})
    asked = [r for r in members if r in by_rank]
    seqs = sorted(calls)
    stuck = next((seq for seq in seqs if _open(calls, seq, asked)), None)
    if stuck is None:
        return ""
    first = max(0, min(seqs.index(stuck) - last // 2, len(seqs) - last))
    rows = [row for seq in seqs[first : first + last] for row in _rows(seq, calls[seq], _missing(calls, seq, asked))]
    rows = [(*row[:5], _STUCK if row[0] == f"#{stuck}" else "") for row in rows]
    title = f"the last collectives of group {name} (ranks {_ranks(members)}):"
    return "\n".join([title, *_aligned(rows), _verdict(stuck, calls, asked, members, waits)])


def _missing(calls: Calls, seq: int, asked: list[int]) -> list[int]:
    """List the ranks that have not called `seq`. A rank that called a later one has only lost its record of `seq`."""
    return [r for r in asked if r not in calls[seq] and not any(r in calls[s] for s in calls if s > seq)]


def _open(calls: Calls, seq: int, asked: list[int]) -> bool:
    return bool(_missing(calls, seq, asked)) or any(c.state != "finished" for c in calls[seq].values())


def _rows(seq: int, called: dict[int, Collective], missing: list[int]) -> list[tuple[str, ...]]:
    """Return one row; or, if the ranks disagree, one row for each different call."""
    rows: list[tuple[str, ...]] = []
    for agreed in dict.fromkeys(c.agreed for c in called.values()):
        same = {r: c for r, c in called.items() if c.agreed == agreed}
        finished = [r for r, c in same.items() if c.state == "finished"]
        waiting = [r for r in same if r not in finished]
        signature = next(iter(same.values())).signature
        rows.append((f"#{seq}", signature, _ranks(finished), _ranks(waiting), _ranks(missing if not rows else [])))
    return rows


def _aligned(rows: list[tuple[str, ...]]) -> list[str]:
    table = [("", "collective", "finished", "waiting", "missing", ""), *rows]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return ["  " + "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in table]


def _verdict(stuck: int, calls: Calls, asked: list[int], members: list[int], waits: dict[int, str]) -> str:
    missing, unknown = _missing(calls, stuck, asked), [r for r in members if r not in asked]
    waiting = [r for r, c in calls[stuck].items() if c.state != "finished"]
    what = f"{_named(waiting)} {'waits' if len(waiting) == 1 else 'wait'} in #{stuck}"
    if missing:
        return f"{what} for {_named(missing)}. " + " ".join(_instead(r, calls, waits) for r in missing)
    if len({c.agreed for c in calls[stuck].values()}) > 1:
        return f"{what}, which the ranks do not call alike"
    if unknown:
        return f"{what}; nothing is known of {_named(unknown)}"
    return f"{what}; every rank has called it: it is under way, or its peers' connection is gone"


def _instead(rank: int, calls: Calls, waits: dict[int, str]) -> str:
    if rank in waits:
        return f"Rank {rank} itself waits in {waits[rank]}."
    last = next((calls[seq][rank] for seq in sorted(calls, reverse=True) if rank in calls[seq]), None)
    if last is None:
        return f"Rank {rank} has called nothing in this group."
    return f"The last that rank {rank} called is #{last.seq} {last.signature} at {last.where or '?'}."


def _named(ranks: list[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {_ranks(ranks)}"


def _ranks(ranks: Sequence[int]) -> str:
    """Rank numbers as text: "0-3, 6" for [0, 1, 2, 3, 6]."""
    runs: list[list[int]] = []
    for r in sorted(ranks):
        if runs and r == runs[-1][-1] + 1:
            runs[-1].append(r)
        else:
            runs.append([r])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
