"""Part 2 of the lab: does each plan of buckets end as early as it can, on links drawn at grading time?"""

import random
from itertools import combinations

from grading.session import Session
from grading.verdict import Verdict
from shardlab.simulate.overlap import finish_time

FEW, MANY = 12, 300  # parameters; with few, all plans can be tried
AS_GOOD_AS = 1.02, 1.001  # times the best plan's finish, for full points; the best bucket_cap_mb's, for half
LINKS_BYTES_PER_S = (0.125e9, 1.25e9, 12.5e9)


def judge(s: Session, check: str, points: float) -> Verdict:
    instances = [_instance(s.seed + i, FEW) for i in range(8)] + [_instance(s.seed, MANY)]
    plans = s.order(check, "plan", world_size=1, instances=instances)[0]
    for instance, plan in zip(instances, plans, strict=True):
        n = len(instance["sizes_bytes"])
        if sum(plan) != n or any(k < 1 for k in plan):
            cause = f"a plan must deal out all {n} parameters, at least one a bucket; yours: {plan}."
            return Verdict(check, 0, points, cause)
    finishes = [finish_time(plan, **instance) for plan, instance in zip(plans, instances, strict=True)]
    over_cap = [t / _best_cap(i) for t, i in zip(finishes, instances, strict=True)]
    over_best = [t / _best(i) for t, i in zip(finishes[:-1], instances[:-1], strict=True)]
    full = max(over_best) <= AS_GOOD_AS[0] and max(over_cap) <= AS_GOOD_AS[1]
    half = max(over_cap) <= AS_GOOD_AS[1]
    figures = {
        f"slowest plan over the best one ({FEW} parameters)": (f"{max(over_best):.3f}", f"{AS_GOOD_AS[0]:g}"),
        "slowest plan over the best bucket_cap_mb": (f"{max(over_cap):.3f}", f"{AS_GOOD_AS[1]:g}, for half points too"),
    }
    if full:
        return Verdict(check, points, points, "no link was found on which another plan would be faster.", "", figures)
    ratios = over_best if half else over_cap
    worst = ratios.index(max(ratios))
    cause = _cause(instances[worst], plans[worst], ratios[worst])
    return Verdict(check, points / 2 if half else 0, points, cause, "", figures)


def _cause(instance: dict, plan: list[int], ratio: float) -> str:
    link = f"{instance['latency_s'] * 1e6:.0f} us and {instance['bandwidth_bytes_per_s'] / 1e9:g} GB/s"
    n = len(instance["ready_s"])
    return f"on a link of {link} your {len(plan)} buckets for {n} parameters take {ratio:.2f} times as long as need be."


def _instance(seed: int, n_params: int) -> dict:
    """A model's gradients and a link, such that neither one bucket nor one a parameter is best."""
    draw = random.Random(seed)
    sizes = [draw.choice((4, 64, 256, 1024)) * 1024 * draw.randint(1, 4) for _ in range(n_params)]
    bandwidth = draw.choice(LINKS_BYTES_PER_S)
    backward_s = sum(sizes) / bandwidth * draw.uniform(0.5, 2.0)
    ready, done = [], 0.0
    for size in sizes:
        done += size / sum(sizes) * backward_s * draw.uniform(0.5, 1.5)
        ready.append(done)
    latency = backward_s / n_params * draw.uniform(0.05, 0.5)
    return dict(sizes_bytes=sizes, ready_s=ready, world_size=8, latency_s=latency, bandwidth_bytes_per_s=bandwidth)


def _best(instance: dict) -> float:
    """Of all plans."""
    n = len(instance["sizes_bytes"])
    cuts = (c for k in range(n) for c in combinations(range(1, n), k))
    return min(finish_time([b - a for a, b in zip((0, *c), (*c, n), strict=True)], **instance) for c in cuts)


def _best_cap(instance: dict) -> float:
    """Of the plans that one bucket_cap_mb makes."""
    return min(finish_time(_plan_for_cap(1 << i, instance), **instance) for i in range(12, 40))


def _plan_for_cap(cap_bytes: int, instance: dict) -> list[int]:
    plan, filled = [0], 0
    for size in instance["sizes_bytes"]:
        if filled >= cap_bytes:
            plan, filled = [*plan, 0], 0
        plan[-1] += 1
        filled += size
    return plan
