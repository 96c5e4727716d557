"""Lab 2's class before the referee: right ones in different styles, and every wrong one that a class hands in."""

from itertools import combinations, pairwise

import pytest
from submissions import checks_that_nothing_needs, class_of, try_sample

from grading.checks.lab2_ddp import plan
from shardlab.simulate.overlap import finish_time

LAB = "lab2_ddp"
# The demo's class is shown by `make demo`, so that here it can wait for the long run.
QUICK = ("mean_of_means", "best_cap")


@pytest.mark.parametrize("sample", class_of(LAB, QUICK))
def test_sample_gets_its_points_and_its_cause(sample, answers, referees, monkeypatch):
    monkeypatch.setattr("grading.session.SHORTEST_DEADLINE_S", 6.0)  # for the one that hangs
    try_sample(sample, answers(sample), referees(LAB))


def test_every_check_stops_a_sample_that_no_other_check_stops():
    assert checks_that_nothing_needs(LAB) == set()


@pytest.mark.parametrize("seed", range(3))
def test_no_plan_is_better_than_the_judges_best(seed):
    instance = plan._instance(seed, n_params=8)
    cuts = [(0, *c, 8) for k in range(8) for c in combinations(range(1, 8), k)]
    all_plans = [[b - a for a, b in pairwise(c)] for c in cuts]
    assert min(finish_time(p, **instance) for p in all_plans) == pytest.approx(plan._best(instance))
