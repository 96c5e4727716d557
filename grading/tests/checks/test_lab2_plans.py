"""Lab 2, part 2: the judge's best plan, what the draws make matter, and what is no plan."""

from contextlib import suppress
from itertools import combinations, pairwise

import pytest
import torch
from submissions import judge_replies

from grading.checks.lab2_ddp import judge_bucket_plan, on_ranks
from grading.references.lab2_ddp.best_bucket_plan import earliest_finish, finish_of_best_cap
from shardsim.bucket_overlap import finish_time


@pytest.mark.parametrize("seed", range(3))
def test_no_plan_is_better_than_the_judges_best(seed):
    instance = judge_bucket_plan._instance(seed, n_params=8)
    cuts = [(0, *c, 8) for k in range(8) for c in combinations(range(1, 8), k)]
    all_plans = [[b - a for a, b in pairwise(c)] for c in cuts]
    assert min(finish_time(p, **instance) for p in all_plans) == pytest.approx(earliest_finish(instance))


def planned(sizes_bytes, ready_s, world_size, latency_s, bandwidth_bytes_per_s):
    """The best plan."""
    finish, plans = [0.0], [[]]
    for j in range(1, len(sizes_bytes) + 1):
        ends = []
        for i in range(j):
            per_hop = latency_s + sum(sizes_bytes[i:j]) / world_size / bandwidth_bytes_per_s
            ends.append((max(finish[i], ready_s[j - 1]) + 2 * (world_size - 1) * per_hop, [*plans[i], j - i]))
        end, plan = min(ends)
        finish, plans = [*finish, end], [*plans, plan]
    return plans[-1]


IGNORED = {
    "sizes_bytes": lambda sizes: [sum(sizes) / len(sizes)] * len(sizes),
    "ready_s": lambda ready: [ready[-1] * i / len(ready) for i in range(1, len(ready) + 1)],
    "world_size": lambda n: 8,
    "latency_s": lambda latency: 0.0,
    "bandwidth_bytes_per_s": lambda bandwidth: 1.25e9,
}


@pytest.mark.parametrize("name", [None, *IGNORED])
@pytest.mark.parametrize("seed", range(0, 500, 100))
def test_the_best_plan_depends_on_each_number_of_every_draw(seed, name, monkeypatch):
    monkeypatch.setattr(judge_bucket_plan, "MANY", 40)

    def plans(instances):
        known = IGNORED.get(name)
        return [[planned(**(i | {name: known(i[name])} if name else i)) for i in instances]]

    points = judge_replies("lab2.plan", {"plan": plans}, seed=seed).points
    assert points < 3 if name else points == 3


@pytest.mark.parametrize("seed", range(20))
def test_the_best_cap_is_not_the_best_plan_on_any_draw(seed):
    instances = [judge_bucket_plan._instance(37 * seed + i, 12) for i in range(8)]
    over = [finish_of_best_cap(i) / earliest_finish(i) for i in instances]
    assert max(over) > 1.025


@pytest.mark.parametrize(
    "returned", [None, [], [12.0], ["12"], [[12]], [0, 12], [-1, 13], [11], [10**400], "12", 12, torch.ones(12), {}]
)
def test_what_is_no_plan_is_said(returned):
    def plans(instances):
        return [on_ranks.plan(lambda **_: returned, instances)]

    verdict = judge_replies("lab2.plan", {"plan": plans}, seed=1)
    assert verdict.points == 0
    assert "a plan is a list of counts, each at least 1, that add up to 12 parameters" in verdict.cause


def test_seconds_of_computing_end_a_loop_that_catches_errors(monkeypatch):
    monkeypatch.setattr(on_ranks, "PLANNING_S", 0.2)

    def loops(**_):
        while True:
            with suppress(Exception):
                sum(range(100))

    assert on_ranks.plan(loops, [{}, {}]) == [None, None]
