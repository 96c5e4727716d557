"""Measure how often a step that is fast enough is called too slow, and how often a right answer is called wrong."""

import random
import time
from functools import partial
from statistics import median

import psutil

from grading.judge.betting_test import median_bounds
from grading.judge.judge_answers import FALSE_FAIL, Referee
from grading.judge.timed_laps import FALSE_PASS
from grading.samples.sample import samples
from grading.samples.trial import handed_in, judge, surprises
from shardbench.first import computing

LAB, CHECK = "lab2_ddp", "lab2.throughput"
LAPS = 60  # most pairs of laps in a simulated race
WIDTH, BURST = 0.1, (1.5, 4.0)  # of a lap's time: sigma of its logarithm, and the factors of a burst


def simulated(n_races: int, slowness: float, seed: int = 0) -> dict:
    """Simulate races of a submission whose time is `slowness` times the bar, while other work comes and goes."""
    draw, outcomes, pairs = random.Random(seed), {"too slow": 0, "fast enough": 0, "unclear": 0}, []
    for _ in range(n_races):
        outcome, n = _race(draw, slowness)
        outcomes[outcome] += 1
        pairs.append(n)
    return {"races": n_races, "time over the bar": slowness, **outcomes, "median pairs": median(pairs)}


def _race(draw: random.Random, slowness: float) -> tuple[str, int]:
    ratios, busy = [], False
    for n in range(1, LAPS + 1):
        laps = []
        for _ in range(2):
            busy ^= draw.random() < 0.1
            laps.append(draw.lognormvariate(0, WIDTH) * (draw.uniform(*BURST) if busy else 1))
        mine_first = draw.random() < 0.5
        ratios.append(slowness * (laps[0] / laps[1] if mine_first else laps[1] / laps[0]))
        low, high = median_bounds(ratios, FALSE_FAIL, FALSE_PASS)
        if low > 1:
            return "too slow", n
        if high <= 1:
            return "fast enough", n
    return "unclear", LAPS


def measured(n_gradings: int, busy_cores: int) -> dict:
    """Judge a correct solution's race again and again, next to `busy_cores` processes that only compute."""
    found, ratios, seconds = {"passed": 0, "failed": 0, "inconclusive": 0}, [], []
    answers = _answers()
    with Referee(LAB, "cpu") as referee, computing(busy_cores):
        for _ in range(n_gradings):
            began = time.monotonic()
            verdict = referee.judge(answers, only=CHECK)[0]
            seconds.append(time.monotonic() - began)
            found["inconclusive" if verdict.inconclusive else "passed" if verdict.passed else "failed"] += 1
            ratios += [got.split(" ")[0] for got, _ in verdict.figures.values()]
    return {
        "gradings": n_gradings,
        "processes beside it": busy_cores,
        **found,
        "ratios": sorted(map(float, ratios)),
        "median seconds": round(median(seconds), 1),
    }


def right_ones(lab: str, times: int, busy_cores: int) -> dict:
    """Judge the lab's right answers, written in several styles, each `times` times.

    A check that is inconclusive because of noise is judged again, as in grading; `surprises` has those that stay so.
    """
    seconds, found = [], []
    with Referee(lab, "cpu") as referee, computing(busy_cores):
        for sample in [s for s in samples(lab) if not s.points] * times:
            answers, began = handed_in(sample), time.monotonic()
            found.append(surprises(sample, judge(sample, answers, referee)))
            seconds.append(time.monotonic() - began)
    return {
        "gradings": len(found),
        "processes beside it": busy_cores,
        "all points": sum(not words for words in found),
        "surprises": [words for words in found if words],
        "median seconds": round(median(seconds), 1),
    }


def by_lab(labs: list[str]) -> dict[str, partial]:
    """Return the parts of the record: a hundred gradings of 25 right answers in all labs, half next to other work."""
    beside = {"quiet": 0, "loaded": psutil.cpu_count()}
    return {f"right ones of {lab}, {how}": partial(right_ones, lab, 2, n) for lab in labs for how, n in beside.items()}


def _answers() -> dict[str, bytes]:
    """Return the answer that the solution's notebook hands in for the check."""
    right = next(s for s in samples(LAB) if s.name == "right")
    return {CHECK: handed_in(right)[CHECK]}
