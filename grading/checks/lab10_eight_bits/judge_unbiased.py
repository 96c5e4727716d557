"""Judge whether a reduce rounds by chance: a call gives neighbours of each number, and sums of errors do not drift.

A number x between the neighbours a and b becomes b with the chance p = (x - a) / (b - a). Then the mean error is 0, and
the mean square of the error is (b - a)^2 p (1 - p). If all draws are independent, the squares of sums of errors have
the sum of these values as their mean. The judge compares the two for sums over calls, rows, columns and matrices.
"""

import base64
import math
from typing import NamedTuple

import torch
from torch import Tensor

from grading.checks.lab10_eight_bits import draw, halfway_numbers, independence_of_draws, truth
from grading.checks.lab10_eight_bits.draw import Instance
from grading.checks.lab10_eight_bits.e4m3_numbers import SMALLEST_NORMAL, nearest, neighbours
from grading.checks.lab10_eight_bits.groups_by_scale_row_column import columns, positions, rows, sets_of
from grading.checks.lab10_eight_bits.on_ranks import CALLS, N_CALLS, reduced_instance, unpacked
from grading.checks.lab10_eight_bits.reused_random_numbers import share_draws, sums_of_rounded, who_share
from grading.judge.session import Session
from grading.judge.verdict import Verdict

MOST_DEVIATIONS = 6.0  # of a ratio from 1, in standard deviations; by chance in fewer than 1 of 100,000 gradings
RATIO = "mean square of errors / that of independent draws"
SUM_OF_TINY = "1 + sum of the errors of tiny numbers / sum of their sizes"
TINY_NOT_ZERO = "tiny numbers whose sum over calls is not 0 / as many as independent draws give"
TINY = 2.0**-8  # a chance: random numbers of 8 bits have none below
CLOSE = 1e-5  # relative to the sum of sizes; float32 sums over 8 ranks give less than 1e-6


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

    @property
    def chance(self) -> Tensor:
        """The chance of `above`; 0 where x is a number of E4M3."""
        gap = self.above - self.below
        return torch.where(gap > 0, (self.x - self.below) / gap, 0.0)

    @property
    def tiny(self) -> Tensor:
        """Mask: some rank's number is not 0, and each lies so near to 0 that it seldom becomes another one."""
        gap = (self.above - self.below).clamp(min=torch.finfo(torch.float64).tiny)
        return self.subnormal & (self.x.abs() < TINY * gap).all(0)


def problem(seed: int, n_ranks: int) -> Problem:
    return problem_of(reduced_instance(seed, n_ranks), seed, n_ranks)


def problem_of(instance: Instance, seed: int, n_ranks: int) -> Problem:
    """Return what follows from the gradients that `seed` draws."""
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
    first, second, total, other, zeros = (
        torch.cat([unpacked(reply[name], torch.float64) for reply in replies])
        for name in ("first", "second", "sum", "other", "zeros")
    )
    given = problem(s.seed, len(replies))
    if words := wrong_call(first, given):
        return Verdict(check, 0, points, words)
    if bool(zeros.any()):
        cause = (
            f"{int((zeros != 0).sum())} elements of a mean of zeros are not zero: something is left of earlier calls."
        )
        return Verdict(check, points * 2 / 5, points, cause)
    later = problem_of(given.instance, s.seed + 1, len(replies))
    if words := wrong_call(second, given) or wrong_call(other, later):
        return Verdict(check, 0, points, f"the first call is right, but a later one is not: {words}")
    ratios = all_ratios(first, total, given)
    figures = {
        (name if name in (SUM_OF_TINY, TINY_NOT_ZERO) else f"{RATIO}, {name}"): (
            f"{ratio:.3f}",
            f"{1 - MOST_DEVIATIONS * sd:.3f} to {1 + MOST_DEVIATIONS * sd:.3f}",
        )
        for name, (ratio, sd) in ratios.items()
    }
    if _unlikely(ratios):
        words = drift(first, total, given, ratios)
    elif share_draws(weighted(first, given), weighted(second, given), weighted_variance(given)):
        words = "numbers at equal distances, or calls, share a random number: their errors repeat."
    elif not (words := _of_many_draws(s, check)):
        cause = "errors are independent draws, and their sum does not drift."
        return Verdict(check, points, points, cause, "", figures)
    return Verdict(check, points * 2 / 5, points, f"each call is right, but {words}", "", figures)


def _of_many_draws(s: Session, check: str) -> str:
    """Return what is wrong with many draws of known chances, in words; "" if nothing is."""
    replies = s.order(check, "many", device="cpu", seed=s.seed)
    if words := next((reply["form"] for reply in replies if reply["form"]), ""):
        return f"{words}."
    calls = [torch.tensor([n for reply in replies for n in base64.b64decode(reply[name])]) for name in CALLS]
    n_faint = [sum(of_sign) for of_sign in zip(*(reply["faint"] for reply in replies), strict=True)]
    n_off = sum(reply["off"] for reply in replies)
    halfway = list(map(sum, zip(*(reply["halfway"] for reply in replies), strict=True)))
    return independence_of_draws.fault(calls, n_faint, n_off, s.seed, len(replies)) or halfway_numbers.fault(
        halfway, sum(reply["halfway off"] for reply in replies), len(replies)
    )


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
    for _, possible in sums_of_rounded(given.below, given.above):
        found |= (total - possible).abs() <= slack
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
        "of tiny numbers": (every, N_CALLS, elements, given.tiny),
        "where all ranks have the same": (one, 1, elements, alike),
        "over rows, too": (every, N_CALLS, rows(instance), None),
        "over columns, too": (every, N_CALLS, columns(instance), None),
        "over matrices, too": (every, N_CALLS, positions(instance), None),
    }
    ratios = {name: _ratio(given, *each) for name, each in sets.items()}
    return ratios | {SUM_OF_TINY: _tiny_sum(every, given), TINY_NOT_ZERO: _tiny_not_zero(total * n, given)}


def _unlikely(ratios: dict[str, tuple[float, float]]) -> set[str]:
    """Return the names of the ratios that independent draws would not give."""
    return {name for name, (ratio, sd) in ratios.items() if abs(ratio - 1) > MOST_DEVIATIONS * sd}


def weighted(call: Tensor, given: Problem) -> Tensor:
    """Return a call's errors, summed over ranks, over the widest gap between neighbours of each element."""
    return (call * len(given.x) - given.x.sum(0)) * _weight(given)


def weighted_variance(given: Problem) -> Tensor:
    return given.variance * _weight(given) ** 2


def _weight(given: Problem) -> Tensor:
    gap = (given.above - given.below).amax(0)
    return torch.where(gap > 0, 1 / gap, 0.0)


def _tiny_sum(every: Tensor, given: Problem) -> tuple[float, float]:
    """Return 1 + the sum of errors over the sum of sizes, of tiny numbers in all calls, and its deviation."""
    weight = _weight(given)[given.tiny]
    sizes = N_CALLS * (given.x.abs().sum(0)[given.tiny] * weight).sum()
    variance = N_CALLS * weighted_variance(given)[given.tiny].sum()
    return 1 + float((every[given.tiny] * weight).sum() / sizes), math.sqrt(float(variance)) / float(sizes)


def _tiny_not_zero(total: Tensor, given: Problem) -> tuple[float, float]:
    """Return how many tiny numbers have a sum over calls that is not 0, over the expected number, and its deviation."""
    gap = (given.above - given.below)[:, given.tiny]
    leaves = torch.where(gap > 0, given.x[:, given.tiny].abs() / gap, 0.0)  # the chance of a rank's number in a call
    chance = 1 - ((1 - leaves) ** N_CALLS).prod(0)
    found = (total[given.tiny].abs() > gap.amax(0) / 1e3).sum()  # ranks' gaps differ
    expected, variance = chance.sum(), (chance * (1 - chance)).sum()
    return float(found / expected), math.sqrt(float(variance)) / float(expected)


def _ratio(given: Problem, errors: Tensor, calls: int, groups: Tensor, mask: Tensor | None) -> tuple[float, float]:
    """Sum errors in groups; return the sum of squares over its mean, and the standard deviation of that.

    Errors are divided by the widest gap between neighbours of an element, so that none counts more than others.
    """
    gap = given.above - given.below
    used = (gap > 0).any(0) if mask is None else mask & (gap > 0).any(0)
    weight, p = _weight(given)[used], given.chance[:, used]
    relative = gap[:, used] * weight
    single = relative**2 * p * (1 - p)
    fourth = (relative**4 * p * (1 - p) * (1 - 6 * p * (1 - p))).sum(0)  # the fourth cumulant of a draw
    n_groups = int(groups.max()) + 1
    summed = torch.zeros(n_groups, dtype=torch.float64).index_add(0, groups[used], errors[used] * weight)
    due = torch.zeros(n_groups, dtype=torch.float64).index_add(0, groups[used], calls * single.sum(0))
    variance = 2 * due.square().sum() + calls * fourth.sum()
    return float(summed.square().sum() / due.sum()), math.sqrt(float(variance)) / float(due.sum())


def drift(first: Tensor, total: Tensor, given: Problem, ratios: dict[str, tuple[float, float]]) -> str:
    """Return why the errors are no independent draws, in words."""
    n, slack, unlikely = len(given.x), CLOSE * given.x.abs().sum(0), _unlikely(ratios)
    high = {name for name in unlikely if ratios[name][0] > 1}
    repeated = (total - N_CALLS * first).abs().le(N_CALLS * slack).all()
    if (first * n - given.near.sum(0)).abs().le(slack).all():
        return "numbers were rounded to the nearest: the same error comes back in every call, and adds up."
    towards = given.x.sign() * torch.minimum(given.below.abs(), given.above.abs())
    if (first * n - towards.sum(0)).abs().le(slack).all():
        return "numbers were rounded towards zero: all sums shrink."
    if repeated:
        return "every call draws the same random numbers: the same errors come back, and add up."
    rounded, sets = (given.below, given.above, given.chance), sets_of(given.instance)
    if who := who_share(first * n, CLOSE * given.largest, *rounded, sets):
        return f"{who} share a random number: draw one for each."
    of_tiny = {"of tiny numbers", SUM_OF_TINY, TINY_NOT_ZERO}
    if unlikely & of_tiny and unlikely <= of_tiny | {"of small numbers"}:
        return "tiny numbers drift: their chance is below 1/256, and it is that chance, not 0 and not 1/256."
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
