"""Time training steps, and compare the times of two.

A single time means little on a machine that others use too. Two steps that take turns see the same disturbances, so
the ratio of neighbours is steady even if the times are not. Compare by ratios, and give a confidence interval.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from math import comb
from statistics import median

import torch
import torch.distributed as dist


@dataclass(frozen=True)
class Comparison:
    """Time of a divided by time of b: median of the paired ratios, and an interval that holds it with `confidence`."""

    ratio: float
    low: float
    high: float
    confidence: float  # attained: at least the requested one, unless there are too few pairs
    a_s: float  # median step times
    b_s: float
    pairs: int

    def __str__(self) -> str:
        interval = f"{self.low:.3f} to {self.high:.3f}, {self.confidence:.0%} sure, {self.pairs} pairs"
        return f"{self.ratio:.3f} ({interval}; {self.a_s * 1e3:.1f} ms against {self.b_s * 1e3:.1f} ms)"


def time_step(step: Callable[[], object]) -> float:
    """Seconds that one step takes on the slowest rank if all start together; the same number on every rank."""
    _synchronize()
    start = time.perf_counter()
    step()
    _synchronize_device()
    elapsed = torch.tensor(time.perf_counter() - start, dtype=torch.float64)
    if dist.is_initialized():
        dist.all_reduce(elapsed, op=dist.ReduceOp.MAX)
    return elapsed.item()


def compare(
    a: Callable[[], object], b: Callable[[], object], *, pairs: int = 15, warmup: int = 3, confidence: float = 0.95
) -> Comparison:
    """Run a and b in turn and compare neighbours; every rank calls this together. Every other pair runs b first."""
    for step in (a, b) * warmup:
        time_step(step)
    times_a, times_b = [], []
    for i in range(pairs):
        if i % 2:
            tb, ta = time_step(b), time_step(a)
        else:
            ta, tb = time_step(a), time_step(b)
        times_a.append(ta)
        times_b.append(tb)
    return comparison(times_a, times_b, confidence)


def comparison(times_a: list[float], times_b: list[float], confidence: float = 0.95) -> Comparison:
    """Compare two lists of seconds in pairs: element i of one was measured next to element i of the other."""
    ratios = [a / b for a, b in zip(times_a, times_b, strict=True)]
    low, high, attained = median_interval(ratios, confidence)
    return Comparison(median(ratios), low, high, attained, median(times_a), median(times_b), len(ratios))


def median_interval(values: list[float], confidence: float) -> tuple[float, float, float]:
    """Return (low, high, attained): the narrowest order statistics that hold the true median with `confidence`.

    It assumes no distribution: each value lies below the true median with probability 1/2, so the number of such values
    is binomial. With too few values, it returns the widest pair and the confidence that this pair attains.
    Source: David & Nagaraja, "Order Statistics", section 7.1.
    """
    ordered, n = sorted(values), len(values)
    tail = 0.0  # probability that the true median lies below ordered[k]
    best = (ordered[0], ordered[-1], max(0.0, 1 - 2 * 0.5**n))
    for k in range(n // 2):
        tail += comb(n, k) * 0.5**n
        if 1 - 2 * tail < confidence:
            break
        best = (ordered[k], ordered[n - 1 - k], 1 - 2 * tail)
    return best


def _synchronize() -> None:
    _synchronize_device()
    if dist.is_initialized():
        dist.barrier()


def _synchronize_device() -> None:
    torch.cpu.synchronize()  # has an effect if `shardsim.cpu_streams` lets the host run ahead
    if torch.cuda.is_available():
        torch.cuda.synchronize()
