"""Part 2 of the lab: test whether each bucket plan ends as early as possible, on links drawn at grading time."""

import random

from grading.checks.lab2_ddp.on_ranks import PLANNING_S
from grading.judge.session import Session
from grading.judge.verdict import Verdict
from shardsim.bucket_overlap import finish_time

FEW, MANY = 12, 300  # numbers of parameters; with few, all plans could be tried
AS_GOOD_AS = 1.02, 1.001  # allowed finish over the best plan's (full points), over the best bucket_cap_mb's (half)
LINKS_BYTES_PER_S = (0.125e9, 1.25e9, 12.5e9)
RANKS = (2, 4, 8, 64)


def judge(s: Session, check: str, points: float) -> Verdict:
    instances = drawn(s.seed)
    plans = s.order(check, "plan", world_size=1, instances=instances)[0]
    for i, (instance, plan) in enumerate(zip(instances, plans, strict=True), 1):
        if problem := _problem(plan, len(instance["sizes_bytes"]), f"model {i} of {len(plans)}"):
            return Verdict(check, 0, points, problem)
    finishes = [finish_time(plan, **instance) for plan, instance in zip(plans, instances, strict=True)]
    over_cap = [t / s.solve("finish_of_best_cap", i) for t, i in zip(finishes, instances, strict=True)]
    over_best = [t / s.solve("earliest_finish", i) for t, i in zip(finishes, instances, strict=True)]
    figures = {
        "slowest plan over the best one": (f"{max(over_best):.3f}", f"{AS_GOOD_AS[0]:g}"),
        "slowest plan over the best bucket_cap_mb": (f"{max(over_cap):.3f}", f"{AS_GOOD_AS[1]:g}, for half points"),
    }
    if max(over_best) <= AS_GOOD_AS[0]:
        return Verdict(check, points, points, "no link was found on which another plan would be faster.", "", figures)
    half = max(over_cap) <= AS_GOOD_AS[1]
    ratios, other = (over_best, "the best plan") if half else (over_cap, "the best bucket_cap_mb's plan")
    worst = ratios.index(max(ratios))
    cause = f"{_described(instances[worst], plans[worst])} ends {ratios[worst]:.3f} times as late as {other}."
    return Verdict(check, points / 2 if half else 0, points, cause, "", figures)


def drawn(seed: int) -> list[dict]:
    return [_instance(seed + i, n) for n, count in ((FEW, 8), (MANY, 3)) for i in range(count)]


def _problem(plan: list[int] | str | None, n_params: int, which: str) -> str | None:
    """Return why there is no valid plan, in words; None if it is valid."""
    if plan is None:
        return f"on {which}, of {n_params} parameters, the {PLANNING_S:g} seconds of computing for all plans were over."
    if isinstance(plan, str) or sum(plan) != n_params or min(plan) < 1:
        what = f"a plan is a list of counts, each at least 1, that add up to {n_params} parameters"
        return f"{what}; for {which} yours is {plan!s:.60}."
    return None


def _described(instance: dict, plan: list[int]) -> str:
    link = f"{instance['latency_s'] * 1e6:.0f} us and {instance['bandwidth_bytes_per_s'] / 1e9:g} GB/s"
    yours = f"your plan for {len(instance['ready_s'])} parameters (buckets: {len(plan)})"
    return f"on a link of {link} between {instance['world_size']} ranks {yours}"


def _instance(seed: int, n_params: int) -> dict:
    """Draw a model's gradients and a link for which neither one bucket nor one bucket a parameter is best."""
    draw = random.Random(seed)
    sizes = [draw.choice((4, 64, 256, 1024)) * 1024 * draw.randint(1, 4) for _ in range(n_params)]
    bandwidth = draw.choice(LINKS_BYTES_PER_S)
    backward_s = sum(sizes) / bandwidth * draw.uniform(0.5, 2.0)
    ready, done = [], 0.0
    for size in sizes:
        done += size / sum(sizes) * backward_s * draw.uniform(0.5, 1.5)
        ready.append(done)
    n = draw.choice(RANKS)
    latency = backward_s / n_params * draw.uniform(0.3, 4.0) / (2 * (n - 1))
    return dict(sizes_bytes=sizes, ready_s=ready, world_size=n, latency_s=latency, bandwidth_bytes_per_s=bandwidth)
