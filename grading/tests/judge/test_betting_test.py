"""The test that may be looked at after every value: its chances, by exact arithmetic, and with bursts of noise."""

import random
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grading.judge.betting_test import median_bounds, needed, wealth
from grading.judge.timing_verdict import Timing, settled


@pytest.mark.parametrize("n", [0, 1, 2, 7, 30])
def test_a_fair_coin_makes_nobody_richer(n):
    """The wealth after the next value, averaged over a fair coin, is the wealth before it."""
    for k in range(n + 1):
        assert (wealth(k, n + 1) + wealth(k + 1, n + 1)) / 2 == pytest.approx(wealth(k, n))


@pytest.mark.parametrize("chance", [0.2, 0.05, 1e-3])
def test_the_chance_of_ever_being_wrong_is_no_more_than_was_said(chance):
    """At worst: each value above the bar with 1/2. Exact, over all paths of 300 values."""
    alive, wrong = {0: 1.0}, 0.0
    for n in range(1, 301):
        after: dict[int, float] = {}
        for k, p in alive.items():
            for more in (0, 1):
                after[k + more] = after.get(k + more, 0.0) + p / 2
        wrong += sum(after.pop(k) for k in list(after) if k >= needed(n, chance))
        alive = after
    assert 0.3 * chance < wrong <= chance  # and it is no idle promise


@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=80), st.floats(0.1, 10))
@settings(deadline=None)
def test_bounds_say_what_the_bets_on_each_bar_say(values, bar):
    low, high = median_bounds(values, too_low=0.01, too_high=0.05)
    above, below = sum(v > bar for v in values), sum(v <= bar for v in values)
    assert (low > bar) == (wealth(above, len(values)) >= 100)
    assert (high <= bar) == (wealth(below, len(values)) >= 20)


def test_few_values_bound_nothing():
    assert median_bounds([1.0, 1.0, 1.0], 1e-3, 0.05) == (0.0, inf)


def test_five_pairs_are_enough_to_pass_and_a_dozen_to_fail():
    assert next(n for n in range(100) if needed(n, 0.05) <= n) == 5
    assert next(n for n in range(100) if needed(n, 1e-3) <= n) == 11


def test_bursts_that_slow_whoever_runs_fail_nobody_who_is_fast_enough():
    """Another program comes and goes, for some laps at a time, and makes them up to four times as slow."""
    chance, wrong, races = 0.05, 0, 300
    for seed in range(races):
        draw, busy, ratios = random.Random(seed), False, []
        for _ in range(60):
            laps = []
            for _ in range(2):
                busy ^= draw.random() < 0.1
                laps.append(draw.lognormvariate(0, 0.1) * (draw.uniform(1.5, 4) if busy else 1))
            draw.shuffle(laps)
            ratios.append(laps[0] / laps[1])
            if median_bounds(ratios, chance, 1e-9)[0] > 1:  # as slow as the bar, to the digit
                wrong += 1
                break
    assert wrong <= chance * races


@pytest.mark.parametrize(
    "low, high, is_settled",
    [(0.0, inf, False), (0.5, 1.1, True), (0.5, 1.3, False), (1.3, 1.4, True), (1.3, 1.6, False), (1.6, inf, True)],
)
def test_a_race_ends_when_the_first_bar_that_holds_is_known(low, high, is_settled):
    assert settled(Timing(1.0, low, high, 1.0, 1.0, 20), (1.2, 1.5)) == is_settled
    assert not settled(None, (1.2, 1.5))


def test_each_bound_has_its_own_chance():
    """Of twenty values a rare mistake takes more of them above the bar than a common one takes below."""
    values = [float(v) for v in range(1, 21)]
    rare, common = needed(20, 1e-3), needed(20, 0.05)
    assert common < rare <= 20
    assert median_bounds(values, too_low=1e-3, too_high=0.05) == (values[20 - rare], values[common - 1])
    assert median_bounds(values, too_low=0.05, too_high=1e-3) == (values[20 - common], values[rare - 1])
