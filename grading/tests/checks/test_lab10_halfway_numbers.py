"""Sums over a call's elements before lab 10's judge: right draws, and stratified ones."""

import pytest
import torch

from grading.checks.lab10_eight_bits import halfway_numbers


def ratio(n: int, seed: int, draw_numbers) -> float:
    """Return the ratio that ranks find which round the judge's numbers with these random numbers of (elements,)."""
    draw = torch.Generator().manual_seed(seed)
    flat = torch.cat([g.flatten() for g in halfway_numbers.gradients()])
    calls = []
    for _ in range(halfway_numbers.N_CALLS):
        went_up = sum((draw_numbers(len(flat), draw) >= 0.5).float() for _ in range(n))
        mean = halfway_numbers.BELOW + went_up * halfway_numbers.GAP / n
        mean[halfway_numbers.FIRST_OF_EACH_GROUP] = 448.0
        found = [halfway_numbers.ups(part, first, n) for part, first in ((mean[:300], 0), (mean[300:], 300))]
        assert not any(off for _, off in found)
        calls.append(sum(up for up, _ in found))
    assert bool(halfway_numbers.fault(calls, 0, n)) == (abs(halfway_numbers.ratio(calls, n) - 1) > 0.75)
    return halfway_numbers.ratio(calls, n)


def stratified(n: int, draw: torch.Generator) -> torch.Tensor:
    return (torch.randperm(n, generator=draw) + torch.rand(n, generator=draw)) / n


@pytest.mark.parametrize("n", (1, 2, 4, 8))
def test_independent_draws_pass_and_stratified_ones_do_not(n):
    for seed in range(5):
        assert 0.4 < ratio(n, seed, lambda size, draw: torch.rand(size, generator=draw)) < 1.6
    assert ratio(n, 7, stratified) < 0.1


@pytest.mark.parametrize("n", (1, 2, 3, 4, 6, 8))
def test_cuts_grow(n):
    cuts = halfway_numbers.instance(n).cuts
    assert cuts == sorted(cuts) and cuts[-1] == 896


def test_an_impossible_mean_is_a_fault():
    mean = torch.cat([g.flatten() for g in halfway_numbers.gradients()])
    assert halfway_numbers.ups(mean, 0, 1)[1] == 896 - len(halfway_numbers.FIRST_OF_EACH_GROUP)
    assert halfway_numbers.ups(mean, 0, 2) == (896 - len(halfway_numbers.FIRST_OF_EACH_GROUP), 0)
    assert "no mean of neighbours" in halfway_numbers.fault([0] * 128, 1, 1)
