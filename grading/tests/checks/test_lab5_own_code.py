"""The graders' own answers are found in a submission, however it reaches them, and nothing else is."""

import functools
from functools import partial

import pytest
import torch

from grading import check
from grading.checks.lab5_precision_recompute import plan_costs
from grading.checks.lab5_precision_recompute.refused_graders_code import use_of_graders


def cached(x):
    return best(x)


def best(x):
    return plan_costs.peak_of(x, 1)


def inside(x):
    from grading.checks.lab5_precision_recompute.plan_costs import peak_of

    return peak_of(x, 1)


def honest(x):
    return [torch.tensor(1), check, x]


@pytest.mark.parametrize(
    "answer",
    [best, cached, inside, partial(best, 1), functools.cache(cached), plan_costs.flops_of, lambda x: best(x)],
)
def test_the_graders_own_code_is_found_behind_every_wrapper(answer):
    assert use_of_graders(answer)


@pytest.mark.parametrize("answer", [honest, partial(honest, 1), functools.cache(honest), None, 7, int, "keep", []])
def test_what_is_not_the_graders_is_not_called_so(answer):
    assert use_of_graders(answer) == ""
