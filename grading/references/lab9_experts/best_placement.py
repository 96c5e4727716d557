"""Lab 9, part 3: a placement whose tokens visit few ranks, by swaps of experts from many random beginnings."""

import random
from collections import Counter
from collections.abc import Iterator

import numpy as np

from grading.checks.lab9_experts.judge_placement import BUSIEST, drawn

BEGINNINGS = 12
TOO_BUSY = 10.0  # more than any number of visits: what a load above the limit costs


def asked(seed: int) -> Iterator[tuple]:
    return (("fewest_visits", instance) for instance in drawn(seed))


def fewest_visits(instance: dict) -> float:
    """Return the fewest ranks that a token visits on average, of placements that keep the load's limit."""
    return search(instance)[0]


def search(instance: dict, beginnings: int = BEGINNINGS) -> tuple[float, list[int]]:
    """Return the visits of the best placement found, and the rank of each expert."""
    n_experts, n = instance["n_experts"], instance["n_ranks"]
    sets = Counter(tuple(sorted(experts)) for experts in instance["chosen"])
    table = np.zeros((len(sets), n_experts), dtype=np.float32)
    for row, experts in zip(table, sets, strict=True):
        row[list(experts)] = 1
    times = np.array([*sets.values()], dtype=np.float32)
    draw, found = random.Random(0), []
    for _ in range(beginnings):
        homes = [e % n for e in range(n_experts)]
        draw.shuffle(homes)
        found.append(_improved(table, times, homes, n))
    return min(end for end in found)


def _improved(table: np.ndarray, times: np.ndarray, homes: list[int], n: int) -> tuple[float, list[int]]:
    """Swap two experts of different ranks as long as that helps, taking the best swap each time."""
    cost = _cost(table, times, np.array(homes), n)
    while True:
        trials = []
        for a in range(len(homes)):
            for b in range(a):
                if homes[a] != homes[b]:
                    other = homes.copy()
                    other[a], other[b] = other[b], other[a]
                    trials.append((_cost(table, times, np.array(other), n), other))
        best = min(trials)
        if best[0] >= cost:
            return cost, homes
        cost, homes = best


def _cost(table: np.ndarray, times: np.ndarray, homes: np.ndarray, n: int) -> float:
    rows = np.stack([table[:, homes == rank].sum(1) for rank in range(n)], 1)
    load = (times[:, None] * rows).sum(0).max() * n / (times[:, None] * rows).sum()
    visits = (times * (rows > 0).sum(1)).sum() / times.sum()
    return float(visits + (load > BUSIEST) * (TOO_BUSY + load))


ON_RANKS = {}  # nothing of ours runs beside a submission
