"""Find random numbers that elements share: errors alike at some distance, and sets that one number has decided."""

from collections.abc import Iterator
from itertools import product

import torch
from torch import Tensor

MOST_DEVIATIONS = 8.0  # of a sum of products; there are some 50,000 distances
FEWEST = 0.02  # of the products' variance at distance 0 must be there at a distance that counts
FEWEST_EACH = 4  # numbers of a set that went up, and as many that went down, so that it tells something
MOST_SETS, ROUNDING = 0.9, 1e-4  # a share of the sets that tell; of a chance


def share_draws(first: Tensor, second: Tensor, variance: Tensor) -> bool:
    """Return whether errors of two calls, each of this variance, are alike at any distance.

    For independent errors the sum over i of first[i] * second[i + d] has the mean 0 and, as its variance, the sum of
    variance[i] * variance[i + d].
    """
    due = _products(variance, variance)
    counts = due > FEWEST * due[0]
    own = counts.clone()
    own[0] = False  # an error is like itself
    return _any_alike(_products(first, first), due, own) or _any_alike(_products(first, second), due, counts)


def _any_alike(products: Tensor, due: Tensor, counts: Tensor) -> bool:
    return bool((products[counts].abs() > MOST_DEVIATIONS * due[counts].sqrt()).any())


def _products(a: Tensor, b: Tensor) -> Tensor:
    """Return for each distance d, from 0 up and then from below up to -1, the sum of a[i] * b[i + d]."""
    n = 2 * len(a)
    return torch.fft.irfft(torch.fft.rfft(a, n).conj() * torch.fft.rfft(b, n), n)


def sums_of_rounded(below: Tensor, above: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield each choice of ranks that round up (ranks, 1), and the sums over ranks that follow (elements)."""
    for choice in product((False, True), repeat=len(below)):
        up = torch.tensor(choice)[:, None]
        yield up, torch.where(up, above, below).sum(0)


def who_share(
    total: Tensor, slack: Tensor, below: Tensor, above: Tensor, chance: Tensor, sets: dict[str, Tensor]
) -> str:
    """Return the name of the first of the sets whose numbers share a random number; "" if none do.

    `total` (elements) is the sum over ranks of rounded numbers, each of `below` or `above` (ranks, elements), and off
    by `slack` at most. A set has an id for each element. Numbers of one id that share a random number went up where
    their chance is above it.
    """
    matches, went_up = torch.zeros(len(total), dtype=torch.int64), torch.zeros_like(below, dtype=torch.bool)
    for up, possible in sums_of_rounded(below, above):
        fits = (possible - total).abs() <= slack
        matches += fits
        went_up[:, fits] = up
    clear = (matches == 1) & (above > below).all(0)
    return next((name for name, ids in sets.items() if _split(chance[:, clear], went_up[:, clear], ids[clear])), "")


def _split(chance: Tensor, went_up: Tensor, ids: Tensor) -> bool:
    """Return whether in nearly all sets of equal ids the chances of those that went up are above all others."""
    low = torch.ones(len(chance), int(ids.max()) + 1, dtype=chance.dtype)  # of those that went up
    high = torch.zeros_like(low)  # of the others
    each = ids.expand_as(chance)
    low.scatter_reduce_(1, each, torch.where(went_up, chance, 1.0), "amin")
    high.scatter_reduce_(1, each, torch.where(went_up, 0.0, chance), "amax")
    ups, downs = (torch.zeros_like(low).scatter_add_(1, each, mask.to(low.dtype)) for mask in (went_up, ~went_up))
    tells = (ups >= FEWEST_EACH) & (downs >= FEWEST_EACH)
    return bool(tells.any()) and float((low + ROUNDING >= high)[tells].double().mean()) > MOST_SETS
