"""The scaling efficiency of a table of runs, and what usual mistakes make of it."""

from collections.abc import Callable
from math import prod
from statistics import mean, median, median_high, median_low

from grading.checks.lab4_fsdp.judge_scaling_efficiency import FACTORS

Tokens = Callable[[dict], float]


def truth(runs: list[dict], summary=median, skip: int = 1, tokens: Tokens | None = None) -> dict[str, float]:
    """Return, by number of ranks, tokens a second and rank over those of the run with the fewest ranks."""
    tokens = tokens or tokens_of
    speed = {r["ranks"]: tokens(r) / summary(r["step_s"][skip:]) / r["ranks"] for r in runs}
    return {str(n): each / speed[min(speed)] for n, each in speed.items()}


def tokens_of(run: dict) -> float:
    """Return the tokens of a step on all ranks."""
    return run["ranks"] * prod(run[name] for name in FACTORS)


def _speedup(runs: list[dict]) -> dict[str, float]:
    fewest = min(r["ranks"] for r in runs)
    return {n: e * int(n) / fewest for n, e in truth(runs).items()}


def _over_n(runs: list[dict]) -> dict[str, float]:
    """Divide by N, although the run with the fewest ranks has more than one."""
    fewest = min(r["ranks"] for r in runs)
    return {n: e / fewest for n, e in truth(runs).items()}


def _over_first(runs: list[dict]) -> dict[str, float]:
    right = truth(runs)
    return {n: e / right[str(runs[0]["ranks"])] for n, e in right.items()}


MISTAKES = {
    "all are compared with the first run of the list, which has not the fewest ranks": _over_first,
    "of an even number of steps, the median is the mean of the two in the middle": lambda runs: truth(
        runs, summary=median_high
    ),
    "of an even number of steps the median is the mean of the two in the middle": lambda runs: truth(
        runs, summary=median_low
    ),
    "step times alone are compared; but the ranks' batches are not equal": lambda runs: truth(
        runs, tokens=lambda r: r["ranks"]
    ),
    "a rank's tokens are taken for the tokens of all": lambda runs: truth(
        runs, tokens=lambda r: tokens_of(r) / r["ranks"]
    ),
    "every run is taken to consume the same tokens, as in strong scaling": lambda runs: truth(runs, tokens=lambda r: 1),
    **{
        f"`{name}` is left out of the tokens": lambda runs, name=name: truth(
            runs, tokens=lambda r: tokens_of(r) / r[name]
        )
        for name in FACTORS
    },
    "that is the speedup, not yet divided by the ranks": _speedup,
    "divided by N, though the run with the fewest ranks has more than one": _over_n,
    "the warm-up step is counted": lambda runs: truth(runs, skip=0),
    "the mean of the step times, which one slow step spoils": lambda runs: truth(runs, summary=mean),
    "the mean of all step times, the warm-up included": lambda runs: truth(runs, summary=mean, skip=0),
}
