"""Lab 8's clusters: over a hundred draws the best strategy changes, and no rule of thumb finds it on many."""

from bisect import bisect
from collections import Counter, defaultdict
from dataclasses import replace
from functools import cache, partial

import pytest

from grading.checks.lab8_capstone import job
from grading.checks.lab8_capstone.judge_tokens_per_s import FULL_SHARE
from grading.references.lab8_capstone import fastest_strategy
from grading.references.lab8_capstone.fastest_strategy import Choice

DRAWS = 100
CLUSTERS = tuple(job.BUDGETS)
FIGURES = {  # what a rule of thumb may look at
    "memory": lambda where: where.memory_bytes,
    "link": lambda where: where.network.between.bandwidth_bytes_per_s,
    "launch": lambda where: where.launch_s,
    "sequence": lambda where: where.sequence_s,
}
GROUPS = 5  # of a figure's values, each with the strategy that is best for it


@cache
def good(cluster: str, seed: int) -> tuple[job.Job, Choice, set[Choice]]:
    """Return a draw's job, its best strategy, and all that get the cluster's points for tokens a second."""
    where = job.job_of(job.draw(seed)[cluster])
    fitting = [c for c in fastest_strategy.choices(where) if fastest_strategy.fits(where, c)]
    seconds = {c: fastest_strategy.step_s(where, c) for c in fitting}
    best = min(seconds, key=seconds.__getitem__)
    return where, best, {c for c, s in seconds.items() if seconds[best] / s >= FULL_SHARE}


def all_good(cluster: str) -> list[tuple[job.Job, Choice, set[Choice]]]:
    return [good(cluster, seed) for seed in range(DRAWS)]


def share_of_a_table(cluster: str) -> float:
    """Return the share of draws on which the best constant gets the points."""
    return Counter(c for _, _, fast in all_good(cluster) for c in fast).most_common(1)[0][1] / DRAWS


def share_of_a_rule(cluster: str, figure: str) -> float:
    """Return the same for the best rule that looks at one figure: a strategy for each fifth of its values."""
    values = sorted(FIGURES[figure](where) for where, *_ in all_good(cluster))
    bounds = [values[DRAWS * i // GROUPS] for i in range(1, GROUPS)]
    groups = defaultdict(list)
    for where, _, fast in all_good(cluster):
        groups[bisect(bounds, FIGURES[figure](where))].append(fast)
    return sum(Counter(c for fast in g for c in fast).most_common(1)[0][1] for g in groups.values()) / DRAWS


@pytest.mark.night
@pytest.mark.parametrize("cluster", CLUSTERS)
def test_the_best_strategy_changes_from_draw_to_draw(cluster):
    times = Counter((best.shards, best.micro_batch, best.recompute_every) for _, best, _ in all_good(cluster))
    assert sorted(times.values())[-1] <= 0.5 * DRAWS, times
    assert sorted(times.values())[-3] >= 0.1 * DRAWS, times


@pytest.mark.night
def test_no_table_and_no_rule_of_one_figure_finds_all_three_on_many_draws():
    def of_all(share) -> float:
        a, b, c = map(share, CLUSTERS)
        return a * b * c

    assert of_all(share_of_a_table) <= 0.1
    assert of_all(lambda cluster: share_of_a_rule(cluster, "memory")) <= 0.15, [
        share_of_a_rule(c, "memory") for c in CLUSTERS
    ]
    for figure in FIGURES:
        assert of_all(partial(share_of_a_rule, figure=figure)) <= 0.5, figure


@pytest.mark.parametrize("cluster", CLUSTERS)
@pytest.mark.parametrize("figure", ["network", "memory_bytes", "launch_s"])
def test_each_figure_decides_on_some_draw(cluster, figure):
    """With one figure of another draw, another strategy is best. Seconds alone set the scale: links follow them."""
    for seed in range(0, 30, 2):
        where, best, _ = good(cluster, seed)
        other = job.job_of(job.draw(seed + 1)[cluster])
        if fastest_strategy.best(replace(where, **{figure: getattr(other, figure)})) != best:
            return
    raise AssertionError(f"{figure} never changes the best strategy on {cluster}")
