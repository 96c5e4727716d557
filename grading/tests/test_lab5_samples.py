"""Lab 5's class before the referee, the model that its notebook shows beside the judge's, and the best plans."""

import inspect
import random
from itertools import product

import pytest
from submissions import checks_that_nothing_needs, class_of, try_sample

from grading.checks.lab5_precision_recompute import plan, reader, reference
from grading.samples import read_lab

LAB = "lab5_precision_recompute"
QUICK = ("saves_the_sum",)


@pytest.mark.parametrize("sample", class_of(LAB, QUICK))
def test_sample_gets_its_points_and_its_cause(sample, answers, referees):
    try_sample(sample, answers(sample), referees(LAB))


def test_every_check_stops_a_sample_that_no_other_check_stops():
    assert checks_that_nothing_needs(LAB) == set()


@pytest.mark.parametrize("folder", ["solutions", "labs"])
def test_the_notebook_shows_the_judges_own_model(folder):
    judges = inspect.getsource(reader)
    shown = {c.metadata.nbgrader.grade_id: c.source for c in read_lab(folder, LAB).cells}
    for cell in ("memory", "reader", "price_list"):
        assert shown[cell].strip() in judges


@pytest.mark.parametrize("seed", range(6))
def test_no_plan_that_fits_is_cheaper_than_the_judges_best(seed):
    blocks, budget = plan._case(random.Random(seed), 6)
    every = [list(ways) for ways in product(reference.WAYS, repeat=6)]
    fitting = [p for p in every if reference.peak_of(p, blocks) <= budget]
    best = reference.best_plan(blocks, budget)
    assert reference.peak_of(best, blocks) <= budget
    assert reference.flops_of(best, blocks) == min(reference.flops_of(p, blocks) for p in fitting)


def test_the_hopeless_case_is_one():
    blocks, budget = plan._hopeless(random.Random(3))
    assert reference.best_plan(blocks, budget) is None
    assert all(block["keep"][0] <= budget for block in blocks)
    assert reference.peak_of(["full"] * len(blocks), blocks) > budget


@pytest.mark.parametrize("answer", [["keep"], ["all"] * 6, 7, {"keep": 6}])
def test_what_is_no_plan_is_told_so(answer):
    blocks, budget = plan._case(random.Random(1), 6)
    assert "one of keep, selective, full" in plan._does_not_fit(blocks, budget, answer)


def test_none_where_a_plan_fits_is_told_so():
    blocks, budget = plan._case(random.Random(1), 6)
    assert "yours is None" in plan._does_not_fit(blocks, budget, None)
