"""Check of lesson 21's exercise: give matrices to owners so that no rank computes much longer than the others."""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

from shardcourse.experiments.whole_matrix_updates import newton_schulz_flops
from shardlab import LaunchError, launch
from shardlab.measure.traffic import record_traffic

N = 4
LAYER = [(16, 16), (8, 16), (8, 16), (16, 16), (48, 16), (48, 16), (16, 48)]
JOBS = {
    "two layers": (LAYER * 2, 4),
    "one large matrix at the end": ([(16, 16)] * 16 + [(32, 32)], 4),
    "many layers": (LAYER * 8, 8),
    "fewer matrices than ranks": ([(16, 16), (48, 16)], 4),
}


def check_owners(assign: Callable, way: Callable, orthogonal: Callable) -> str:
    """Return in words what is wrong with `assign(shapes, ranks)`, or that it is right.

    `way(shards, owners)` and `orthogonal(matrix)` are the lesson's: on four ranks they must give what one process gets.
    """
    for name, (shapes, ranks) in JOBS.items():
        try:
            owners = assign(list(shapes), ranks)
        except NotImplementedError:
            return "assign is not written yet"
        except Exception as error:
            return f"It fails. {type(error).__name__}: {error}"
        if wrong := _wrong_owners(owners, shapes, ranks):
            return f"{name}: {wrong}"
    try:
        found = launch(_on_ranks, N, assign, way, orthogonal, device="cpu", stream=False)
    except LaunchError as error:
        return f"It fails on ranks. {str(error).strip().splitlines()[-1]}"
    if len({str(owners) for owners, *_ in found}) > 1:
        return "The ranks disagree: all must compute the same owners, without random numbers."
    for rank, (_, off, sent, expected) in enumerate(found):
        if off > 1e-4:
            return f"Rank {rank}: the updates differ from those of one process by {off:.0e}."
        if sent != expected:
            return f"Rank {rank} sends {sent:,.0f} bytes, and {expected:,.0f} by the formula."
    return "Right: the busiest rank has hardly more than its share, and four ranks compute what one process does."


def busiest(owners: list[int], shapes: list[tuple[int, int]], ranks: int) -> tuple[int, float]:
    """Return the FLOPs of the busiest rank, and the least that it could have: a share, or the largest matrix."""
    loads = [0] * ranks
    for owner, shape in zip(owners, shapes, strict=True):
        loads[owner] += newton_schulz_flops(shape)
    return max(loads), max(sum(loads) / ranks, max(map(newton_schulz_flops, shapes)))


def _wrong_owners(owners: object, shapes: list[tuple[int, int]], ranks: int) -> str:
    if not isinstance(owners, list) or not all(isinstance(owner, int) for owner in owners):
        return "return a list with a rank, an int, for each matrix."
    if len(owners) != len(shapes):
        return f"{len(owners)} owners for {len(shapes)} matrices."
    if not all(0 <= owner < ranks for owner in owners):
        return f"an owner is not among the ranks 0 to {ranks - 1}: {owners}."
    most, least = busiest(owners, shapes, ranks)
    if most > 4 / 3 * least:  # Graham 1969 says so of the best assignment; in JOBS it holds for the bound
        return f"the busiest rank computes {most / least:.2f} times the bound, {most:,} FLOPs."
    return ""


def _on_ranks(assign: Callable, way: Callable, orthogonal: Callable) -> tuple[list[int], float, float, float]:
    """Return this rank's owners, the error of its updates, and the bytes that it sent and should have sent."""
    torch.manual_seed(0)
    rank = dist.get_rank()
    whole = [torch.randn(shape) for shape in LAYER]
    shards = [matrix.chunk(N)[rank].clone() for matrix in whole]
    owners = assign(LAYER, N)
    with record_traffic() as traffic:
        updates = way(shards, owners)
    expected = [orthogonal(matrix).chunk(N)[rank] for matrix in whole]
    off = max(((a - b).norm() / b.norm()).item() for a, b in zip(updates, expected, strict=True))
    return owners, off, traffic.sent_bytes(), sent_bytes(whole, owners, rank)


def sent_bytes(whole: list[Tensor], owners: list[int], rank: int) -> float:
    """Bytes: a rank sends its shards of others' matrices, and sends back the other ranks' shards of its own."""
    mine = sum(matrix.nbytes for matrix, owner in zip(whole, owners, strict=True) if owner == rank)
    others = sum(matrix.nbytes for matrix in whole) - mine
    return others / N + mine * (N - 1) / N
