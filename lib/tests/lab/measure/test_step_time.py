"""Times are compared fairly: taken in turn, as ratios of neighbours, with an interval that keeps its promise."""

import random
import time
from math import comb

import pytest
import torch.distributed as dist

from shardlab import launch
from shardlab.measure import step_time
from shardlab.measure.step_time import compare, comparison, median_interval, time_step


class Clock:
    """time.perf_counter() of a machine on which nothing takes time but what says so."""

    def __init__(self) -> None:
        self.now = 0.0
        self.calls: list[str] = []

    def perf_counter(self) -> float:
        return self.now

    def work(self, name: str, seconds):
        def step() -> None:
            self.calls.append(name)
            self.now += seconds()

        return step


@pytest.fixture
def clock(monkeypatch) -> Clock:
    fake = Clock()
    monkeypatch.setattr(step_time, "time", fake)
    return fake


def test_order_turns_in_each_pair_after_the_warm_up(clock):
    compare(clock.work("a", lambda: 1.0), clock.work("b", lambda: 1.0), pairs=4, warmup=2)
    assert "".join(clock.calls) == "abab" + "ab" + "ba" + "ab" + "ba"


def test_ratio_is_exact_where_the_clock_is(clock):
    c = compare(clock.work("a", lambda: 3.0), clock.work("b", lambda: 2.0), pairs=9)
    assert (c.ratio, c.low, c.high, c.pairs, c.a_s, c.b_s) == (1.5, 1.5, 1.5, 9, 3.0, 2.0)


def test_ratio_survives_a_machine_that_slows_down_and_stalls(clock):
    """Each step takes 1.2 against 1, times a drift that both see and a stall that either may meet."""
    chance = random.Random(0)

    def seconds(factor):
        return lambda: factor * (1 + clock.now / 50) * (5 if chance.random() < 0.1 else 1)

    c = compare(clock.work("a", seconds(1.2)), clock.work("b", seconds(1.0)), pairs=41)
    assert c.low <= c.ratio <= c.high
    assert c.ratio == pytest.approx(1.2, rel=0.1)


@pytest.mark.parametrize("shape", ["normal", "heavy tails", "skewed"])
@pytest.mark.parametrize("n", [6, 15, 30])
def test_interval_holds_the_median_as_often_as_it_says(shape, n):
    """By simulation, for distributions that have little in common but a median of 0."""
    chance, runs = random.Random(n), 4000
    draw = {
        "normal": lambda: chance.gauss(0, 1),
        "heavy tails": lambda: chance.gauss(0, 1) / chance.gauss(0, 1),
        "skewed": lambda: chance.expovariate(1) - 0.6931471805599453,
    }[shape]
    held = 0
    for _ in range(runs):
        low, high, attained = median_interval([draw() for _ in range(n)], 0.9)
        held += low <= 0 <= high
    assert attained >= 0.9
    margin = 4 * (attained * (1 - attained) / runs) ** 0.5  # four standard errors of the count
    assert held / runs == pytest.approx(attained, abs=margin)


@pytest.mark.parametrize("confidence", [0.5, 0.9, 0.95, 0.99])
@pytest.mark.parametrize("n", range(2, 25))
def test_interval_is_the_narrowest_that_is_wide_enough(n, confidence):
    """Binomial(n, 1/2): the k-th smallest to the k-th largest hold the median unless fewer than k lie on a side."""
    values = random.Random(n).sample(range(1000), n)
    holds = {k: 1 - 2 * sum(comb(n, i) for i in range(k)) / 2**n for k in range(1, n // 2 + 1)}
    k = max((k for k, chance in holds.items() if chance >= confidence), default=1)
    low, high, attained = median_interval(values, confidence)
    assert (low, high, attained) == (sorted(values)[k - 1], sorted(values)[-k], pytest.approx(holds[k]))


def test_one_pair_is_no_evidence():
    c = comparison([2.0], [1.0])
    assert (c.ratio, c.confidence) == (2.0, 0.0)


def uneven_steps(rank_seconds: list[float]) -> float:
    """A time that only rank's own clock knows, so that nothing hangs on the machine."""
    clock = Clock()
    step_time.time = clock
    return time_step(clock.work("", lambda: rank_seconds[dist.get_rank()]))


def real_time() -> float:
    """Three times 10 ms against 10 ms, asleep: a busy machine lengthens both by the same little."""
    return compare(lambda: time.sleep(0.03), lambda: time.sleep(0.01), pairs=15).ratio


def test_on_ranks_a_step_takes_as_long_as_on_the_slowest_and_all_agree():
    assert launch(uneven_steps, 3, [1.0, 4.0, 2.0], device="cpu") == [4.0] * 3
    ratio, theirs = launch(real_time, 2, device="cpu")
    assert ratio == theirs
    assert 2 < ratio < 3.5
