"""Judge sums over the elements of a call: are draws stratified, so that their errors cancel in every call?

All ranks have the same gradient. Each of its numbers lies halfway between its neighbours, but for the largest of each
group, and all scales are 1. Then a rank's sum of errors in gaps has the mean 0 and the variance of its elements / 4, if
draws are independent. With one u from each of as many equal parts of 0 to 1 as there are elements, half of the numbers
go up in every call, and the sum is 0. Other chances than a half would leave up to half of the variance there.
"""

import math

import torch
from torch import Tensor

from grading.checks.lab10_eight_bits.draw import Instance, almost_even

N_CALLS = 128  # the least ratio that independent draws give is then 1 - 6 sqrt(2 / 128) = 0.25
MOST_DEVIATIONS = 6.0  # of the ratio from 1, in standard deviations
BELOW, GAP = 1.0, 2.0**-3  # of neighbours in E4M3
SHAPES, FORMATS = [(16, 32), (8, 48)], ["row", "tensor"]
FIRST_OF_EACH_GROUP = [*range(0, 16 * 32, 32), 16 * 32]  # elements: the first of each group
OFF = 1e-3  # of a gap


def instance(n: int) -> Instance:
    return almost_even(Instance(SHAPES, FORMATS, []), n)


def gradients() -> list[Tensor]:
    flat = torch.full((sum(Instance(SHAPES, FORMATS, []).sizes),), BELOW + GAP / 2)
    flat[FIRST_OF_EACH_GROUP] = 448.0  # so that the scale is 1
    parts = flat.split(Instance(SHAPES, FORMATS, []).sizes)
    return [part.view(shape) for part, shape in zip(parts, SHAPES, strict=True)]


def ups(mean: Tensor, first: int, n: int) -> tuple[int, int]:
    """Return how often ranks rounded up what begins at element `first`, and how many means are impossible."""
    halfway = ~torch.isin(torch.arange(first, first + len(mean)), torch.tensor(FIRST_OF_EACH_GROUP))
    found = n * (mean.double()[halfway] - BELOW) / GAP
    near = found.round()
    possible = ((found - near).abs() <= OFF) & (near >= 0) & (near <= n)
    return int(near[possible].sum()), int((~possible).sum())


def ratio(ups_of_calls: list[int], n: int) -> float:
    """Return the mean square of the calls' sums of errors over that of independent draws."""
    draws = n * (sum(Instance(SHAPES, FORMATS, []).sizes) - len(FIRST_OF_EACH_GROUP))
    return sum((went_up - draws / 2) ** 2 for went_up in ups_of_calls) / len(ups_of_calls) / (draws / 4)


def fault(ups_of_calls: list[int], n_off: int, n: int) -> str:
    """Return what is wrong with sums over the elements of a call, in words; "" if nothing is."""
    if n_off:
        return f"where all scales are 1, {n_off} elements are no mean of neighbours."
    if abs(ratio(ups_of_calls, n) - 1) <= MOST_DEVIATIONS * math.sqrt(2 / N_CALLS):
        return ""
    return (
        f"the sum of all errors of a call has {ratio(ups_of_calls, n):.2f} times the mean square that independent "
        "draws give: draws from equal parts of 0 to 1 (stratified) are not independent."
    )
