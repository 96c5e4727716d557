"""Time that a long job loses to failures and to saving, played through at random: the material of lesson 11b."""

import random


def lost_share(cost_s: float, interval_s: float, between_failures_s: float, *, work_s: float = 4e6, seed=0) -> float:
    """Return the time lost for each second of work.

    The job works for `interval_s`, then saves for `cost_s`. Failures come at random, `between_failures_s` apart on
    average; each takes the job back to its last checkpoint. Restarting costs nothing here.
    """
    draw, clock, done = random.Random(seed), 0.0, 0.0
    next_failure = draw.expovariate(1 / between_failures_s)
    while done < work_s:
        if clock + interval_s + cost_s <= next_failure:
            clock, done = clock + interval_s + cost_s, done + interval_s
        else:
            clock = next_failure
            next_failure += draw.expovariate(1 / between_failures_s)
    return clock / done - 1
