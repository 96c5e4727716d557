"""Many draws of known chances before lab 10's judge: right ones, coarse ones, and u beside 1 - u."""

import pytest
import torch

from grading.checks.lab10_eight_bits import independence_of_draws

ALMOST_1 = 1 - 2**-24  # the largest random number in float32


def judged(n: int, draw_numbers, seed: int = 3) -> str:
    """Return the fault of ranks that round with these random numbers of (ranks, elements)."""
    sign, below, gap, p = independence_of_draws.drawn(seed, n)
    calls = []
    for _ in range(independence_of_draws.N_CALLS):
        x, u = (sign * p).float(), draw_numbers((n, len(p)))
        went_up = torch.floor(x + u).abs().long().sum(0)  # to 1 from a number above 0, to -1 from one below
        mean = (sign * (n * below + went_up * gap) / n).float()
        found, off = independence_of_draws.ups(mean, 0, seed, n)
        assert off == 0 and torch.equal(found.long(), went_up)
        calls.append(found)
    return independence_of_draws.fault(
        calls[:2], independence_of_draws.faint_ups(torch.stack(calls).sum(0), 0, seed, n), 0, seed, n
    )


def random_numbers(seed: int = 5) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("n", (2, 4, 8))
@pytest.mark.parametrize("seed", range(2))
def test_right_draws_pass(n, seed):
    draw = random_numbers(seed)
    assert judged(n, lambda shape: torch.rand(shape, generator=draw), seed) == ""


@pytest.mark.parametrize("bits, passes", [(8, False), (11, False), (16, False), (20, True)])
@pytest.mark.parametrize("n", (2, 8))
def test_random_numbers_of_few_bits_are_found(n, bits, passes):
    draw = random_numbers()
    words = judged(n, lambda shape: torch.randint(2**bits, shape, generator=draw) / 2**bits)
    assert ("few bits" in words) is not passes


@pytest.mark.parametrize("part", (0.0, 0.5, 2 / 3, 0.8, 1.0))
@pytest.mark.parametrize("n", (2, 8))
def test_two_ranks_with_one_random_number_are_found_whatever_part_is_flipped(n, part):
    draw = random_numbers()

    def numbers(shape):
        u = torch.rand(shape, generator=draw)
        u[1] = torch.where(torch.rand(shape[1], generator=draw) < part, ALMOST_1 - u[0], u[0])
        return u

    assert "ranks' random numbers depend" in judged(n, numbers)


@pytest.mark.parametrize("part", (0.0, 0.5, 2 / 3, 0.8, 1.0))
def test_elements_and_calls_with_one_random_number_are_found_whatever_part_is_flipped(part):
    draw, kept = random_numbers(), []

    def flipped(u):
        return torch.where(torch.rand(u.shape, generator=draw) < part, ALMOST_1 - u, u)

    def elements(shape):
        u, width = torch.rand(shape, generator=draw), shape[1] // 20
        u[:, width : 2 * width] = flipped(u[:, :width])
        return u

    def calls(shape):
        kept.append(flipped(kept.pop()) if kept else torch.rand(shape, generator=draw))
        return kept[-1]

    for numbers in (elements, calls):
        words = judged(4, numbers)
        assert "elements' or calls' random numbers depend" in words or "became the number next to 0" in words


def test_an_impossible_mean_is_counted():
    sign, below, gap, _ = independence_of_draws.drawn(1, 4)
    mean = (sign * below).float()
    mean[7] += 0.3 * float(gap[7]) * float(sign[7]) / 4
    assert independence_of_draws.ups(mean, 0, 1, 4)[1] == 1
    assert "no mean of neighbours" in independence_of_draws.fault([], [0, 0], 1, 1, 4)
