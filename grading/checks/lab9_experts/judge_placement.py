"""Judge where the experts are placed: how busy the busiest rank is, and how many ranks a token visits."""

import random

from grading.judge.session import Session
from grading.judge.verdict import Verdict

BUSIEST, MOST_VISITS = 1.10, 1.03  # allowed: choices of the busiest rank over the mean; visits over ours
N_TOKENS, TOP_K = 600, 4
SIZES = ((16, 4), (20, 4), (24, 4), (18, 3))  # experts and ranks of each of the drawn layers
STRAY = 0.15  # the share of choices that follow no topic


def judge(s: Session, check: str, points: float) -> Verdict:
    """Judge all layers: no points if a rank is too busy, two of five if tokens visit too many ranks."""
    instances, figures, far = drawn(s.seed), {}, ""
    placed = s.order(check, "place", world_size=1, instances=instances)[0]
    for instance, homes in zip(instances, placed, strict=True):
        layer = f"the layer of {instance['n_experts']} experts on {instance['n_ranks']} ranks"
        if problem := _problem(homes, instance):
            return Verdict(check, 0, points, f"{layer}: {problem}", "", figures)
        load, visited = busiest(homes, **instance), mean_visits(homes, **instance)
        best = s.solve("fewest_visits", instance)
        figures[f"{layer}: choices of the busiest rank, over the mean"] = (f"{load:.3f}", f"{BUSIEST:g}")
        figures[f"{layer}: ranks that a token visits"] = (f"{visited:.3f}", f"{MOST_VISITS * best:.3f}")
        if load > BUSIEST:
            words = f"{layer}: the busiest rank has {load:.2f} times the mean choices; at most {BUSIEST:g} is allowed."
            return Verdict(check, 0, points, words, "", figures)
        if visited > MOST_VISITS * best and not far:
            times = f"{visited / best:.2f} times as many as with our placement"
            far = f"{layer}: a token visits {visited:.2f} ranks, {times}."
    if far:
        return Verdict(check, 2 * points / 5, points, far, "", figures)
    return Verdict(check, points, points, "no rank is too busy, and tokens visit few ranks.", "", figures)


def _problem(homes: list[int] | str, instance: dict) -> str:
    n_experts, n = instance["n_experts"], instance["n_ranks"]
    if isinstance(homes, str):
        return f"a placement is a list of {n_experts} ranks, not {homes}."
    counts = [homes.count(rank) for rank in range(n)]
    if len(homes) != n_experts or sum(counts) != n_experts:
        return f"a placement is a list of {n_experts} ranks from 0 to {n - 1}; yours is {homes!s:.60}."
    if len({*counts}) > 1:
        return f"each rank holds {n_experts // n} experts; with yours they hold {counts}."
    return ""


def busiest(homes: list[int], chosen: list[list[int]], n_ranks: int, **_) -> float:
    """Return the choices of the busiest rank over the mean. A choice is a token with one of its experts."""
    choices = [0] * n_ranks
    for experts in chosen:
        for e in experts:
            choices[homes[e]] += 1
    return max(choices) * n_ranks / sum(choices)


def mean_visits(homes: list[int], chosen: list[list[int]], **_) -> float:
    """Return on how many ranks a token's experts live, on average."""
    return sum(len({homes[e] for e in experts}) for experts in chosen) / len(chosen)


def drawn(seed: int) -> list[dict]:
    return [_layer(random.Random(10 * seed + i), *sizes) for i, sizes in enumerate(SIZES)]


def _layer(draw: random.Random, n_experts: int, n_ranks: int) -> dict:
    """Draw what tokens chose. Each has one of some topics, some more common than others, with experts of its own.

    Numbers of experts say nothing of topics. Common topics have few experts each, so that a rank with two of them is
    too busy.
    """
    numbers = draw.sample(range(n_experts), n_experts)
    cuts = sorted(draw.sample(range(2, n_experts // 2 - 1), n_experts // 4 - 1))
    bounds = [0, *(2 * cut for cut in cuts), n_experts]
    topics = [numbers[a:b] for a, b in zip(bounds, bounds[1:], strict=False) if b > a]
    common = [draw.uniform(1, 3) * len(topic) ** 0.5 for topic in topics]
    chosen = []
    for topic in draw.choices(topics, common, k=N_TOKENS):
        mine = draw.sample(topic, min(TOP_K, len(topic)))
        mine = [e for e in mine if draw.random() > STRAY]
        others = [e for e in numbers if e not in mine]
        chosen.append(mine + draw.sample(others, TOP_K - len(mine)))
    return {"chosen": chosen, "n_experts": n_experts, "n_ranks": n_ranks}
