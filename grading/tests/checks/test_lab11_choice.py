"""Lab 11's judge of the choice: limits of a schedule's seconds, mistakes that only the seconds tell, and the jobs."""

import json
import random
from functools import cache

import numpy as np
import pytest
import torch
from submissions import falls_short, judge_replies

from grading.checks.lab11_slow_link import drawn_jobs, judge_choice, on_ranks
from grading.references.lab11_slow_link import schedule_times


def judged(choose) -> tuple:
    return judge_replies("lab11.choice", {"choices": lambda jobs: [[choose(facts) for facts in jobs]]})


@cache
def times_of(written: str) -> dict[str, float]:
    return {key: t for key, t in schedule_times.times(json.loads(written)).items() if t}


def by_ratio(most: float, said: float = 1.0):
    """Choose the slowest schedule that takes at most so many times as long as the best; say its seconds, times `said`.

    Only the third job's are multiplied.
    """
    jobs = iter(range(drawn_jobs.N_JOBS))

    def choose(facts):
        times = times_of(json.dumps(facts))
        seconds, key = max((t, key) for key, t in times.items() if t <= most * min(times.values()))
        return [*map(int, key.split()), seconds * (said if next(jobs) == 2 else 1.0)]

    return choose


@pytest.mark.night
def test_the_worst_job_decides_and_there_are_two_limits():
    said = {
        "no schedule reaches any job's target sooner": (judged(by_ratio(judge_choice.FULL)), 4),
        "reaches the target after": (judged(by_ratio(judge_choice.HALF)), 2),
    }
    assert falls_short(said) == {}
    assert judged(by_ratio(1.2 * judge_choice.HALF)).points == 0


def test_what_is_no_schedule_is_refused():
    said = {
        "has to return (H, late, seconds)": (judged(lambda facts: "3.0"), 0),
        "H=3 is none of": (judged(lambda facts: [3, 0, 1.0]), 0),
        "late=4 does not lie between": (judged(lambda facts: [4, 4, 1.0]), 0),
        "late=-1 does not lie between": (judged(lambda facts: [4, -1, 1.0]), 0),
    }
    assert falls_short(said) == {}


def test_seconds_of_one_job_that_are_off_take_all_points():
    off = judge_choice.SECONDS_OFF
    assert judged(by_ratio(1.0, 1 + 0.5 * off)).points == 4
    for said in (1 - 2 * off, float("nan")):
        verdict = judged(by_ratio(1.0, said))
        assert verdict.points == 0 and "job 3, 4 sites" in verdict.cause and "and you say" in verdict.cause, said


@pytest.mark.parametrize("mistake", ("waits in every round", "all ranks reduce"))
def test_seconds_tell_mistakes_that_choose_as_well(mistake):
    """On about half of the draws they choose within 1.02 of the best on every job. Here six jobs are looked at."""
    worst = 0.0
    for facts in drawn_jobs.draw(1)[:6]:
        job, times = drawn_jobs.job_of(facts), schedule_times.times(facts)
        every = range(job.network.world_size)
        ranks = every if mistake == "all ranks reduce" else schedule_times.one_of_each_site(job)
        message_s, said = job.network.seconds("all_reduce", job.drift_bytes, ranks), {}
        for H, late in (map(int, key.split()) for key, t in times.items() if t):
            rounds, waits_s = schedule_times.rounds_needed(job, H, late), max(0.0, message_s - late * job.step_s)
            last_s = waits_s if mistake == "waits in every round" else message_s
            said[f"{H} {late}"] = rounds * H * job.step_s + (rounds - 1) * waits_s + last_s
        best = min(said, key=said.get)
        worst = max(worst, abs(said[best] / times[best] - 1))
    assert worst > 100 * judge_choice.SECONDS_OFF


@pytest.mark.parametrize(
    ("returned", "plan"),
    (
        ((2, 1, 0.5), [2, 1, 0.5]),
        ([np.int64(2), torch.tensor(1), torch.tensor(0.5)], [2, 1, 0.5]),
        ((2, 1), "(2, 1)"),
        ((2.0, 1, 0.5), "(2.0, 1, 0.5)"),
        ((2, 1, "0.5"), "(2, 1, '0.5')"),
        ((2, 1, torch.zeros(3)), "(2, 1, tensor([0., 0., 0.]))"),
        (None, "None"),
    ),
)
def test_a_schedule_is_two_ints_and_a_number_of_any_kind(returned, plan):
    assert on_ranks._plan(returned) == plan


@pytest.mark.parametrize("seed", (0, pytest.param(11, marks=pytest.mark.night)))
def test_no_rule_of_thumb_is_near_the_best_on_all_jobs(seed):
    worst: dict[str, float] = {}
    for facts in drawn_jobs.draw(seed):
        times = {tuple(map(int, key.split())): t or float("inf") for key, t in schedule_times.times(facts).items()}
        best = min(times.values())
        assert best < float("inf")
        rules = {f"always {H}": min(times[H, late] for late in range(H)) for H in drawn_jobs.H_ALLOWED}
        rules["never late"] = min(times[H, 0] for H in drawn_jobs.H_ALLOWED)
        rules["as late as can be"] = min(times[H, H - 1] for H in drawn_jobs.H_ALLOWED)
        worst = {name: max(worst.get(name, 0.0), t / best) for name, t in rules.items()}
    assert min(worst.values()) > judge_choice.HALF


def test_rounds_needed_are_those_of_step_by_step_training():
    """The reference takes many steps at once; here they are taken one by one, with autograd."""
    rng = random.Random(5)
    for facts in rng.sample(drawn_jobs.draw(2), 3):
        job, H, late = drawn_jobs.job_of(facts), 8, rng.randrange(8)
        assert schedule_times.rounds_needed(job, H, late) == step_by_step(job, H, late)


def step_by_step(job, H: int, late: int) -> int | None:
    w = torch.zeros_like(job.optimum)
    anchor, v, sent = torch.zeros_like(w[0]), torch.zeros_like(w[0]), None
    for step in range(1, drawn_jobs.MOST_STEPS + late + 1):
        w = w.detach().requires_grad_()
        (job.curvature * (w - job.optimum) ** 2 / 2).sum().backward()
        w = w.detach() - job.inner_lr * w.grad
        if step % H == 0:
            sent, d = w.clone(), job.shares @ (anchor - w)
        if sent is not None and step % H == late:
            v = job.momentum * v + d
            anchor = anchor - job.lr * (d + job.momentum * v)
            if drawn_jobs.loss_of(job, anchor) <= job.target:
                return (step - late) // H
            w, sent = anchor + w - sent, None
    return None
