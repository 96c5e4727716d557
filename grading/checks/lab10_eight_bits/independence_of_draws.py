"""Judge many draws of known chances: are tiny chances kept, and are draws of ranks, elements and calls independent?

All ranks have the same gradient, and all scales are 1. So the judge knows how many ranks rounded a number up, away from
0. `reused_random_numbers` finds numbers that draw alike. A draw of 1 - u where another one has u lowers the products of
errors, and can hide draws of u there. Errors times 1 - 2p find both: a sum of the two kinds of products can be 0 in one
of the two tests, but not in both.
"""

import math
from functools import lru_cache

import torch
from torch import Tensor

from grading.checks.lab10_eight_bits.draw import Instance, almost_even
from grading.checks.lab10_eight_bits.reused_random_numbers import share_draws

N_CALLS = 16
MOST_DEVIATIONS = 6.0  # of a sum from its mean, in standard deviations
WIDTH, MIDDLING_ROWS, FAINT_NUMBERS = 400, 250, 1_000_000  # faint numbers of all ranks together
FAINT_BITS = 16, 19  # powers of 1/2 between which tiny chances lie
GAP, FAINT_GAP = 2.0**-3, 2.0**-9  # between neighbours in E4M3: from 1 to 2, and next to 0
OFF = 1e-3  # of a gap


def instance(n: int) -> Instance:
    """Return two matrices: one of middling chances, and one of tiny ones."""
    shapes = [(MIDDLING_ROWS, WIDTH), (FAINT_NUMBERS // n // WIDTH, WIDTH)]
    return almost_even(Instance(shapes, ["tensor", "tensor"], []), n)


@lru_cache(maxsize=1)  # each of a rank's calls looks at the same draws
def drawn(seed: int, n: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return of each element of the flat gradient: its sign, the size below, the gap, and the chance to go up."""
    draw = torch.Generator().manual_seed(seed)
    middling, faint = instance(n).sizes
    sign = torch.randint(2, (middling + faint,), generator=draw).double() * 2 - 1
    below = 1 + GAP * torch.randint(8, (middling,), generator=draw).double()
    chance = torch.randint(1, 2**16, (middling,), generator=draw).double() / 2**16
    low, high = FAINT_BITS
    tiny = 2.0 ** -(low + (high - low) * torch.rand(faint, generator=draw).double())
    below, chance = torch.cat((below, torch.zeros(faint))), torch.cat((chance, tiny.float().double()))
    gap = torch.cat((torch.full((middling,), GAP), torch.full((faint,), FAINT_GAP))).double()
    for largest in (0, middling):  # so that the scale is 1
        below[largest], chance[largest] = 448.0, 0.0
    return sign, below, gap, chance


def gradients(seed: int, n: int) -> list[Tensor]:
    sign, below, gap, chance = drawn(seed, n)
    flat = (sign * (below + gap * chance)).float()
    whole = instance(n)
    return [part.view(shape) for part, shape in zip(flat.split(whole.sizes), whole.shapes, strict=True)]


def ups(mean: Tensor, first: int, seed: int, n: int) -> tuple[Tensor, int]:
    """Return how many ranks rounded each element up, from element `first` on, and how many means are impossible."""
    sign, below, gap, _ = (t[first : first + len(mean)] for t in drawn(seed, n))
    found = (mean.double() * n * sign - n * below) / gap
    near = found.round()
    off = ~((found - near).abs() <= OFF) | (near < 0) | (near > n)
    return torch.where(off, 0, near).to(torch.uint8), int(off.sum())


def faint_ups(found: Tensor, first: int, seed: int, n: int) -> list[int]:
    """Return how often ranks rounded up positive and negative faint numbers. `found` begins at element `first`."""
    faint = torch.arange(first, first + len(found)) >= instance(n).sizes[0]
    sign = drawn(seed, n)[0][first : first + len(found)]
    return [int(found[faint & (sign == which)].sum()) for which in (1, -1)]


def fault(calls: list[Tensor], n_faint: list[int], n_off: int, seed: int, n: int) -> str:
    """Return what is wrong with many draws, in words; "" if nothing is.

    `calls` are two calls' numbers of ranks that rounded up (elements); `n_faint` those of all calls' faint numbers,
    positive and negative. Coarse random numbers can make one of the two too rare and the other one too frequent.
    """
    if n_off:
        return f"where all scales are 1, {n_off} elements are no mean of neighbours."
    middling, (sign, _, _, p) = instance(n).sizes[0], drawn(seed, n)
    for kind, which, found in (("positive", 1, n_faint[0]), ("negative", -1, n_faint[1])):
        due = N_CALLS * n * float(p[middling:][sign[middling:] == which].sum())
        if abs(found - due) > MOST_DEVIATIONS * math.sqrt(due):
            return (
                f"of {kind} numbers whose chance is 2^-{FAINT_BITS[1]} to 2^-{FAINT_BITS[0]}, {found} became the "
                f"number next to 0, and {due:.0f} are due: random numbers of few bits have no such chances."
            )
    p = p[:middling]
    first, second = (call[:middling].double() - n * p for call in calls)
    for weight in (torch.ones_like(p), 1 - 2 * p):
        products, variance = pairs_of_ranks(first + n * p, p, n)
        if abs(float((weight**2 * products).sum())) > MOST_DEVIATIONS * float((weight**4 * variance).sum().sqrt()):
            return "ranks' random numbers depend on each other: u and 1 - u are no independent draws."
        if share_draws(weight * first, weight * second, weight**2 * n * p * (1 - p)):
            return "elements' or calls' random numbers depend on each other: u and 1 - u are no independent draws."
    return ""


def pairs_of_ranks(went_up: Tensor, p: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """Return of each element the sum over pairs of ranks of the products of their errors in gaps, and its variance.

    A rank's error is 1 - p or -p. Independent ones have products of mean 0 and variance (p (1 - p))^2, and products of
    two pairs are uncorrelated.
    """
    squares = went_up * (1 - 2 * p) + n * p**2  # the sum over ranks of squared errors
    return ((went_up - n * p).square() - squares) / 2, n * (n - 1) / 2 * (p * (1 - p)).square()
