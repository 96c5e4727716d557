"""Data for the checks of memory, messages and overlap: one record of a step, the buckets, and each rank's share."""

from functools import cache

import torch
from torch import nn

from grading.checks.lab3_zero import on_ranks
from grading.checks.lab3_zero.owner_rule import Piece, owned
from grading.checks.lab3_zero.refuse_unsharded import refuse_unsharded
from grading.judge.session import Session
from shardlab.ddp import assign_buckets

SMALL_BYTES = 256  # of a message that carries a norm or a flag


def record(s: Session, check: str) -> list[dict]:
    """Return each rank's record of a step of the tier's model."""
    replies = s.order(check, "record_step", **arguments(s))
    refuse_unsharded([r["updates"] for r in replies], n_elements(s.tier.name))
    return replies


def arguments(s: Session) -> dict:
    tier, shares = s.tier.name, on_ranks.shares(s.seed, s.tier.world_size)
    return dict(seed=s.seed, tier=tier, shares=shares, cap_mb=_cap_mb(tier))


def fractions(s: Session) -> list[float]:
    shares = on_ranks.shares(s.seed, s.tier.world_size)
    return [x / sum(shares) for x in shares]


def passes(reply: dict) -> list[list[dict]]:
    """Return the collectives of each backward and, last, of `step`, each in the order in which they were issued."""
    parts: list[list[dict]] = [[] for _ in range(len(reply["ends"]) + 1)]
    for c in sorted(reply["collectives"], key=lambda c: c["at"]):
        parts[sum(end < c["at"] for end in reply["ends"])].append(c)
    return parts


def psi_bytes(tier: str) -> int:
    return sum(p.nbytes for p in _parameters(tier))


def n_elements(tier: str) -> int:
    return sum(p.numel() for p in _parameters(tier))


def buckets(tier: str) -> list[list[int]]:
    """Return the numbers of the parameters in each bucket."""
    return numbers(_parameters(tier), _cap_mb(tier))


def bucket_bytes(tier: str) -> list[int]:
    return [sum(_parameters(tier)[i].nbytes for i in bucket) for bucket in buckets(tier)]


def pieces(tier: str, shares: list[int], rank: int) -> list[Piece]:
    """Return what a rank owns of all parameters, in the order of the parameters."""
    sizes = [p.numel() for p in _parameters(tier)]
    in_buckets = ((b, owned([sizes[i] for i in b], shares, rank)) for b in buckets(tier))
    return sorted((b[i], start, end) for b, theirs in in_buckets for i, start, end in theirs)


def name(tier: str, i: int) -> str:
    return [name for name, _ in _module(tier).named_parameters()][i]


def numbers(params: list[nn.Parameter], cap_mb: float) -> list[list[int]]:
    number, cap_bytes = {p: i for i, p in enumerate(params)}, int(cap_mb * on_ranks.MIB)
    return [[number[p] for p in bucket] for bucket in assign_buckets(params, cap_bytes, cap_bytes)]


def _cap_mb(tier: str) -> float:
    return on_ranks.of_tier(on_ranks.BUDGETS, tier)["bucket_cap_mb"]


@cache
def _module(tier: str) -> nn.Module:
    with torch.device("meta"):
        return on_ranks.build(0, on_ranks.of_tier(on_ranks.SIZES, tier))


def _parameters(tier: str) -> list[nn.Parameter]:
    return list(_module(tier).parameters())
