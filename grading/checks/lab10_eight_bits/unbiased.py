"""Judge whether a reduce rounds by chance: a call gives neighbours of each number, and sums of errors do not drift.

A number x between the neighbours a and b becomes b with the chance p = (x - a) / (b - a). Then the mean error is 0, and
the mean square of the error is (b - a)^2 p (1 - p). If all draws are independent, the squares of sums of errors have
the sum of these values as their mean. The judge compares the two for sums over calls, rows, columns and matrices.
"""

import math
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor

from grading.checks.lab10_eight_bits import draw, truth
from grading.checks.lab10_eight_bits.draw import Instance
from grading.checks.lab10_eight_bits.e4m3 import SMALLEST_NORMAL, nearest, neighbours
from grading.checks.lab10_eight_bits.on_ranks import N_CALLS, unpacked
from grading.judge.session import Session
from grading.judge.verdict import Verdict

MOST_DEVIATIONS = 6.0  # of a ratio from 1, in standard deviations; by chance in fewer than 1 of 100,000 gradings
CLOSE = 1e-5  # relative to the sum of sizes; float32 sums over 8 ranks give less than 1e-6

FEWEST_OF_A_SET, MOST_SETS, ROUNDING = 12, 0.9, 1e-4  # of numbers that share a random number; a share; of a chance


class Problem(NamedTuple):
    """The gradients that ranks were given, and what follows: tensors of (ranks, elements), in float64."""

    instance: Instance
    x: Tensor
    below: Tensor
    above: Tensor
    near: Tensor  # rounded to the nearest
    subnormal: Tensor  # mask: at least one rank's number is so small that the spacing of E4M3 does not shrink with it

    @property
    def largest(self) -> Tensor:
        """The largest that each element's sum over ranks can be: float32 rounds the numbers that arrive, not x."""
        return torch.maximum(self.above.abs(), self.below.abs()).sum(0)

    @property
    def variance(self) -> Tensor:
        """Mean square of each element's error in one call, summed over ranks."""
        return ((self.above - self.x) * (self.x - self.below)).sum(0)


def problem(seed: int, n_ranks: int) -> Problem:
    instance = draw.one_instance(seed, n_ranks)
    x = torch.stack([draw.flat(draw.gradients(instance, seed, rank)).double() for rank in range(n_ranks)])
    return _rounded(instance, x, torch.stack([truth.scales(flat, instance.group_sizes) for flat in x]))


def _rounded(instance: Instance, x: Tensor, scale: Tensor) -> Problem:
    below, above = (t * scale for t in neighbours(x / scale))
    subnormal = ((x / scale).abs() < SMALLEST_NORMAL).all(0) & (x != 0).any(0)
    return Problem(instance, x, below, above, nearest(x / scale) * scale, subnormal)


def judge(s: Session, check: str, points: float) -> Verdict:
    """Give 2 of 5 points if each call's numbers are neighbours, and all if the errors behave as independent draws."""
    replies = s.order(check, "reduce", device="cpu", seed=s.seed)
    for rank, reply in enumerate(replies):
        if reply["form"]:
            return Verdict(check, 0, points, f"on rank {rank} {reply['form']}.")
    first, total, zeros = (
        torch.cat([unpacked(reply[name], torch.float64) for reply in replies]) for name in ("first", "sum", "zeros")
    )
    given = problem(s.seed, len(replies))
    if words := wrong_call(first, given):
        return Verdict(check, 0, points, words)
    if bool(zeros.any()):
        cause = (
            f"{int((zeros != 0).sum())} elements of a mean of zeros are not zero: something is left of earlier calls."
        )
        return Verdict(check, points * 2 / 5, points, cause)
    ratios = all_ratios(first, total, given)
    figures = {
        f"mean square of errors / that of independent draws, {name}": (
            f"{ratio:.3f}",
            f"{1 - MOST_DEVIATIONS * sd:.3f} to {1 + MOST_DEVIATIONS * sd:.3f}",
        )
        for name, (ratio, sd) in ratios.items()
    }
    if any(abs(ratio - 1) > MOST_DEVIATIONS * sd for ratio, sd in ratios.values()):
        words = drift(first, total, given, ratios)
    elif repeats(first, given):
        words = "numbers at equal distances share a random number: their errors repeat."
    else:
        cause = "errors are independent draws, and their sum does not drift."
        return Verdict(check, points, points, cause, "", figures)
    return Verdict(check, points * 2 / 5, points, f"each call is right, but {words}", "", figures)


def wrong_call(mean: Tensor, given: Problem) -> str:
    """Return what is wrong with one call's means, in words; "" if each is a mean of neighbours."""
    n = len(given.x)
    if not torch.isfinite(mean).all():
        zeros = (given.x[:, ~torch.isfinite(mean)] == 0).any()
        why = ", where a rank's numbers are all zero" if zeros else ""
        return f"{int((~torch.isfinite(mean)).sum())} elements of the mean are not finite{why}."
    off = ~_possible(mean * n, given)
    if not off.any():
        return ""
    slack = CLOSE * given.largest
    known = {
        "the sum over ranks, not the mean": mean,
        "the mean divided by the number of ranks once more": mean * n * n,
    }
    for words, total in known.items():
        if _possible(total, given).all():
            return f"`reduce` returned {words}."
    if (mean * n - given.x.sum(0)).abs().le(slack).all():
        return "the mean is that of the gradients themselves: they were not rounded."
    of_all_ranks = truth.scales(given.x.abs().amax(0), given.instance.group_sizes).expand_as(given.x)
    if _possible(mean * n, _rounded(given.instance, given.x, of_all_ranks)).all():
        return "all ranks round with the largest scale of any rank: each has to take those of its own gradient."
    inside = (given.below.sum(0) - slack <= mean * n) & (mean * n <= given.above.sum(0) + slack)
    often = f"{int(off.sum())} of {len(mean)} elements are no mean of neighbours in E4M3"
    if inside.all():
        return f"{often}, but lie between them: other scales than those of the sender's gradient, or rounded once more."
    i = int((off & ~inside).nonzero()[0])
    return (
        f"{often}. In the first, {float(mean[i]):.6g} was returned, and from "
        f"{float(given.below[:, i].sum()) / n:.6g} to {float(given.above[:, i].sum()) / n:.6g} is possible."
    )


def _possible(total: Tensor, given: Problem) -> Tensor:
    """Return a mask of the elements that are a sum of one neighbour of each rank.

    Where float32 can't tell on which side of a number of E4M3 some x lies, the next number beyond it is possible, too.
    """
    slack = CLOSE * given.largest
    on_edge = ((given.x - given.near).abs() <= truth.EDGE * given.x.abs()) & (given.x != 0)
    found = on_edge.any(0) & ((total - given.x.sum(0)).abs() <= given.x.abs().sum(0) / 8)
    for choice in product((given.below, given.above), repeat=len(given.x)):
        found |= (total - sum(of_rank[rank] for rank, of_rank in enumerate(choice))).abs() <= slack
    return found


def all_ratios(first: Tensor, total: Tensor, given: Problem) -> dict[str, tuple[float, float]]:
    """Return by name the ratio of the mean square of errors to that of independent draws, and its deviation."""
    n, instance = len(given.x), given.instance
    one, every = first * n - given.x.sum(0), total * n - N_CALLS * given.x.sum(0)
    alike = torch.cat([torch.full((size,), i % 3 == 0) for i, size in enumerate(instance.sizes)])
    elements = torch.arange(len(first))
    sets = {
        "one call": (one, 1, elements, None),
        "sums over calls": (every, N_CALLS, elements, None),
        "of small numbers": (every, N_CALLS, elements, given.subnormal),
        "where all ranks have the same": (one, 1, elements, alike),
        "over rows, too": (every, N_CALLS, _rows(instance), None),
        "over columns, too": (every, N_CALLS, _columns(instance), None),
        "over matrices, too": (every, N_CALLS, _positions(instance), None),
    }
    return {name: _ratio(given, *each) for name, each in sets.items()}


def who_share(first: Tensor, given: Problem) -> str:
    """Return which numbers of a call share a random number, in words; "" if none do.

    Numbers that share one went up where their chance is above it, and down elsewhere.
    """
    n, slack, instance = len(given.x), CLOSE * given.largest, given.instance
    gap, matches = given.above - given.below, torch.zeros(len(first), dtype=torch.int64)
    went_up = torch.zeros_like(given.x, dtype=torch.bool)
    for choice in product((False, True), repeat=n):
        total = torch.where(torch.tensor(choice)[:, None], given.above, given.below).sum(0)
        fits = (total - first * n).abs() <= slack
        matches += fits
        went_up[:, fits] = torch.tensor(choice)[:, None]
    clear = (matches == 1) & (gap > 0).all(0)
    p, went_up = ((given.x - given.below) / gap)[:, clear], went_up[:, clear]
    sets = {
        "all numbers of a rank's call": torch.zeros(len(first), dtype=torch.int64),
        "numbers with one scale": torch.arange(len(instance.group_sizes)).repeat_interleave(
            torch.tensor(instance.group_sizes)
        ),
        "numbers along rows": _rows(instance),
        "numbers along columns": _columns(instance),
    }
    return next((who for who, ids in sets.items() if _split_by_chance(p, went_up, ids[clear])), "")


def _split_by_chance(p: Tensor, went_up: Tensor, ids: Tensor) -> bool:
    """Return whether in nearly all sets of equal ids the chances of those that went up are above all others."""
    low = torch.ones(len(p), int(ids.max()) + 1, dtype=p.dtype)  # of those that went up
    high = torch.zeros_like(low)  # of the others
    each = ids.expand_as(p)
    low.scatter_reduce_(1, each, torch.where(went_up, p, 1.0), "amin")
    high.scatter_reduce_(1, each, torch.where(went_up, 0.0, p), "amax")
    large = ids.bincount() >= FEWEST_OF_A_SET
    return bool(large.any()) and float((low + ROUNDING >= high)[:, large].double().mean()) > MOST_SETS


def repeats(first: Tensor, given: Problem) -> bool:
    """Return whether one call's errors have a period: of independent draws, all frequencies have about equal power.

    A frequency's power over its mean is above t with the chance exp(-t): above the limit in one of ten million calls.
    """
    gap = (given.above - given.below).amax(0)
    weight = torch.where(gap > 0, 1 / gap, 0.0)
    errors = (first * len(given.x) - given.x.sum(0)) * weight
    power = torch.fft.rfft(errors).abs().square()[1:] / (given.variance * weight**2).sum()
    return bool(power.max() > math.log(len(power)) + 16)


def _ratio(given: Problem, errors: Tensor, calls: int, groups: Tensor, mask: Tensor | None) -> tuple[float, float]:
    """Sum errors in groups; return the sum of squares over its mean, and the standard deviation of that.

    Errors are divided by the widest gap between neighbours of an element, so that none counts more than others.
    """
    gap = given.above - given.below
    used = (gap > 0).any(0) if mask is None else mask & (gap > 0).any(0)
    weight = 1 / gap.amax(0)[used]
    p = torch.where(gap > 0, (given.x - given.below) / gap, 0.0)[:, used]
    relative = gap[:, used] * weight
    single = relative**2 * p * (1 - p)
    fourth = (relative**4 * p * (1 - p) * (1 - 6 * p * (1 - p))).sum(0)  # the fourth cumulant of a draw
    n_groups = int(groups.max()) + 1
    summed = torch.zeros(n_groups, dtype=torch.float64).index_add(0, groups[used], errors[used] * weight)
    due = torch.zeros(n_groups, dtype=torch.float64).index_add(0, groups[used], calls * single.sum(0))
    variance = 2 * due.square().sum() + calls * fourth.sum()
    return float(summed.square().sum() / due.sum()), math.sqrt(float(variance)) / float(due.sum())


def _rows(instance: Instance) -> Tensor:
    rows = [columns for rows, columns in instance.shapes for _ in range(rows)]
    return torch.arange(len(rows)).repeat_interleave(torch.tensor(rows))


def _columns(instance: Instance) -> Tensor:
    found, first = [], 0
    for rows, columns in instance.shapes:
        found.append(first + torch.arange(columns).repeat(rows))
        first += columns
    return torch.cat(found)


def _positions(instance: Instance) -> Tensor:
    return torch.cat([torch.arange(size) for size in instance.sizes])


def drift(first: Tensor, total: Tensor, given: Problem, ratios: dict[str, tuple[float, float]]) -> str:
    """Return why the errors are no independent draws, in words."""
    n, slack = len(given.x), CLOSE * given.x.abs().sum(0)
    high = {name for name, (ratio, sd) in ratios.items() if ratio - 1 > MOST_DEVIATIONS * sd}
    repeated = (total - N_CALLS * first).abs().le(N_CALLS * slack).all()
    if (first * n - given.near.sum(0)).abs().le(slack).all():
        return "numbers were rounded to the nearest: the same error comes back in every call, and adds up."
    towards = given.x.sign() * torch.minimum(given.below.abs(), given.above.abs())
    if (first * n - towards.sum(0)).abs().le(slack).all():
        return "numbers were rounded towards zero: all sums shrink."
    if repeated:
        return "every call draws the same random numbers: the same errors come back, and add up."
    if who := who_share(first, given):
        return f"{who} share a random number: draw one for each."
    if ratios["of small numbers"][0] > 2 * ratios["sums over calls"][0]:
        return "small numbers drift: below 2^-6 of a scale the numbers of E4M3 are equally far apart, down to 0."
    if ratios["sums over calls"][0] > 2 * ratios["one call"][0]:
        return "the errors of an element add up over calls: the chance of a neighbour must be its nearness."
    if "where all ranks have the same" in high:
        return "ranks draw the same random numbers: their errors add up, where independent ones would cancel."
    if "one call" in high or "sums over calls" in high:
        return "the errors of an element add up over calls: the chance of a neighbour must be its nearness."
    for name in ("rows", "columns", "matrices"):
        if f"over {name}, too" in high:
            return f"numbers along {name} share a random number: their errors add up."
    if "of small numbers" in high:
        return "small numbers drift: below 2^-6 of a scale the numbers of E4M3 are equally far apart, down to 0."
    return "the errors are smaller than those of independent draws: something of a call is kept for later ones."
