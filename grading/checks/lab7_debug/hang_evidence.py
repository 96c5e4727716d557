"""Evidence of hung runs, generated at grading time: what each rank's flight recorder holds when nothing moves.

All ranks of a run have the same program, a list of collectives on three axes of a mesh; one rank is at fault. Ranks
issue collectives ahead, as FSDP does when it prefetches, and stop at the oldest collectives that never finish.
"""

import random
from dataclasses import dataclass, field

KINDS = ("stops", "leaves out")
MESHES = ((1, 4), (2, 3), (2, 4), (3, 3))  # (replicas, ranks of each)


@dataclass
class Hang:
    """A hung run. `records[rank]`: collectives as [axis, ranks, seq, call, finished]; `fault`: (rank, axis, seq)."""

    kind: str
    mesh: tuple[int, int]
    records: list[list[list]]
    fault: tuple[int, str, int]


@dataclass
class _Rank:
    plan: list[tuple[str, str]]  # (axis, call), in this rank's order of issue
    log: list[list] = field(default_factory=list)


def hang(seed: int, kind: str, mesh: tuple[int, int], twice: bool = False) -> Hang:
    """Make up a hung run. `twice`: the call that is left out comes twice in a row."""
    draw = random.Random(f"{seed} {kind} {mesh}")
    program = _program(draw, two_axes=mesh[0] > 1)
    n, ahead = mesh[0] * mesh[1], draw.choice((1, 2, 3))
    culprit, at = draw.randrange(n), draw.randrange(len(program) // 2, len(program) - 4)
    if kind == "leaves out":  # a collective on which no other replica can stop first
        shard = [i for i in range(len(program) // 2 - 4, len(program) - 4) if program[i][0] == "shard"]
        at = draw.choice(
            [i for i in shard if program[i] == program[i + 1]] if twice else [i for i in shard if i >= at - 4]
        )
    axis = program[at][0]
    plan = program[:at] if kind == "stops" else program[:at] + program[at + 1 :]
    ranks = [_Rank(plan if r == culprit else program) for r in range(n)]
    while any([_issue(r, ranks[r], ahead, mesh) for r in range(n)]) or _finish(ranks):
        pass
    seq = _first_missing(culprit, axis, sum(a == axis for a, _ in program[:at]), ranks)
    if kind == "leaves out" and not any(e[0] == axis and e[2] == seq for e in ranks[culprit].log):
        return hang(seed + 1_000_003, kind, mesh, twice)  # ranks wait for each other, so the fault is ambiguous
    kept = draw.randint(22, 26)  # the recorder's ring: more than a step
    return Hang(kind, mesh, [r.log[-kept:] for r in ranks], (culprit, axis, seq))


def _program(draw: random.Random, two_axes: bool) -> list[tuple[str, str]]:
    """Return the collectives of four steps of FSDP or HSDP.

    A step gathers in forward, gathers and reduces in backward, and ends with one or two all_reduces over all ranks.
    """
    sizes = [draw.choice((512, 1024, 4096)) * draw.randint(1, 8) for _ in range(draw.randint(2, 4))]
    step = [("shard", f"all_gather Float[{n}]") for n in sizes]
    for n in reversed(sizes):
        step += [("shard", f"all_gather Float[{n}]"), ("shard", f"reduce_scatter Float[{n}]")]
        step += [("replicate", f"all_reduce Float[{n // 4}]")] * two_axes
    return (step + [("world", "all_reduce Float[1]")] * draw.randint(1, 2)) * 4


def _members(rank: int, axis: str, mesh: tuple[int, int]) -> list[int]:
    replicas, width = mesh
    if axis == "shard":
        return [rank // width * width + i for i in range(width)]
    return [rank % width + i * width for i in range(replicas)] if axis == "replicate" else list(range(replicas * width))


def _issue(number: int, rank: _Rank, ahead: int, mesh: tuple[int, int]) -> bool:
    if not rank.plan[len(rank.log) :] or sum(not finished for *_, finished in rank.log) >= ahead:
        return False
    axis, call = rank.plan[len(rank.log)]
    seq = sum(a == axis for a, *_ in rank.log)
    rank.log.append([axis, _members(number, axis, mesh), seq, call, False])
    return True


def _finish(ranks: list[_Rank]) -> bool:
    """Finish every collective that all its members have issued alike, in order within each group."""
    progress = False
    for rank in ranks:
        stuck = set()
        for entry in rank.log:
            axis, members, seq, call, finished = entry
            if finished:
                continue
            same = [e for m in members for e in ranks[m].log if (e[0], e[2], e[3]) == (axis, seq, call)]
            if axis in stuck or len(same) < len(members):
                stuck.add(axis)
                continue
            for e in same:
                e[4] = progress = True
    return progress


def _first_missing(culprit: int, axis: str, start: int, ranks: list[_Rank]) -> int:
    """Return the first collective, from the fault on, that the culprit did not call as its group did."""
    calls = [{e[2]: e[3] for e in rank.log if e[0] == axis} for rank in ranks]
    members = next(e[1] for e in ranks[culprit].log if e[0] == axis)
    other = next(m for m in members if m != culprit)
    return next(seq for seq in range(start, 10_000) if calls[culprit].get(seq) != calls[other].get(seq, ""))
