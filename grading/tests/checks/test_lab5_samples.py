"""Lab 5's class before the referee, the model that its notebook shows beside the judge's, and the best plans."""

import inspect
import random
from itertools import product

import pytest
from submissions import checks_that_nothing_needs, class_of, concerned, surprises_of, try_sample

from grading.checks.lab5_precision_recompute import (
    judge_matches_fp32,
    judge_plan,
    notebook_model_and_price_list,
    plan_costs,
)
from grading.judge.reference_lookup import OurAnswers
from grading.references.lab5_precision_recompute import best_plan as ours
from grading.samples.sample import read_lab, samples

ONE_RANK = ("lab5.plan",)  # checks whose drills need no other
LAB = "lab5_precision_recompute"
SOLVE = OurAnswers(ours.__name__).solve


@pytest.mark.parametrize("sample", class_of(LAB))
def test_sample_gets_its_points_and_its_cause(sample, answers, referees):
    try_sample(sample, answers(sample), referees(LAB))


@pytest.mark.parametrize("sample", concerned(LAB, ONE_RANK))
def test_sample_gets_its_points_where_one_rank_is_asked(sample, answers, unboxed, monkeypatch):
    monkeypatch.setattr(judge_plan, "LIMIT_S", 3)  # right plans take a tenth of a second
    assert surprises_of(sample, answers(sample), unboxed(LAB), ONE_RANK) == []


def test_every_check_stops_a_sample_that_no_other_check_stops():
    assert checks_that_nothing_needs(LAB) == set()


@pytest.mark.parametrize("folder", ["solutions", "labs"])
def test_the_notebook_shows_the_judges_own_model(folder):
    judges = inspect.getsource(notebook_model_and_price_list)
    shown = {c.metadata.nbgrader.grade_id: c.source for c in read_lab(folder, LAB).cells}
    for cell in ("memory", "reader", "price_list"):
        assert shown[cell].strip() in judges


@pytest.mark.parametrize("seed", range(6))
def test_no_plan_that_fits_is_cheaper_than_the_judges_best(seed):
    blocks, budget = judge_plan._case(SOLVE, random.Random(seed), 6)
    every = [list(ways) for ways in product(plan_costs.WAYS, repeat=6)]
    fitting = [p for p in every if plan_costs.peak_of(p, blocks) <= budget]
    best = ours.best_plan(blocks, budget)
    assert plan_costs.peak_of(best, blocks) <= budget
    assert plan_costs.flops_of(best, blocks) == min(plan_costs.flops_of(p, blocks) for p in fitting)


def test_the_hopeless_case_is_one():
    blocks, budget = judge_plan._hopeless(random.Random(3))
    assert ours.best_plan(blocks, budget) is None
    assert all(block["keep"][0] <= budget for block in blocks)
    assert plan_costs.peak_of(["full"] * len(blocks), blocks) > budget


@pytest.mark.parametrize("answer", [["keep"], ["all"] * 6, 7, {"keep": 6}])
def test_what_is_no_plan_is_told_so(answer):
    blocks, budget = judge_plan._case(SOLVE, random.Random(1), 6)
    assert "one of keep, selective, full" in judge_plan._does_not_fit(
        blocks, budget, answer, SOLVE("fewest", blocks, budget)
    )


def test_none_where_a_plan_fits_is_told_so():
    blocks, budget = judge_plan._case(SOLVE, random.Random(1), 6)
    assert "yours is None" in judge_plan._does_not_fit(blocks, budget, None, SOLVE("fewest", blocks, budget))


@pytest.mark.parametrize("seed", range(6))
def test_a_byte_less_takes_more_flops(seed):
    blocks, budget = judge_plan._case(SOLVE, random.Random(seed), 6, exact=True)
    best = ours.best_plan(blocks, budget)
    assert plan_costs.peak_of(best, blocks) == budget
    less = ours.best_plan(blocks, budget - 1)
    assert less is None or plan_costs.flops_of(less, blocks) > plan_costs.flops_of(best, blocks)


@pytest.mark.night
def test_the_solution_sends_what_it_should_on_ranks(answers, unboxed, monkeypatch):
    monkeypatch.setattr(judge_matches_fp32, "STEPS", 2)
    right = next(s for s in samples(LAB) if s.name == "right")
    assert unboxed(LAB).judge(answers(right), only="lab5.wire")[0].passed
