"""Judge whether the second forward repeats the first: two steps' gradients with dropout must equal a plain model's."""

import math
import random

from grading.checks.lab5_precision_recompute import on_ranks
from grading.checks.lab5_precision_recompute.judge_matches_fp32 import gradients_off
from grading.checks.lab5_precision_recompute.plan_costs import WAYS
from grading.judge.session import Session
from grading.judge.verdict import Verdict

TOLERANCE = 1e-4  # of each parameter: on a CPU the same operations in the same order agree to the bit
IN_ANOTHER_ORDER = 0.15  # share by which a mixed plan's full widths change if it is read from its end


def plans(s: Session) -> list[list[str]]:
    """Return plans that treat all blocks alike, and one that mixes the ways in a drawn order.

    From last to first the mixed plan would recompute other widths in full: the sum of FLOPs shows the order.
    """
    widths = on_ranks.shape_of(s.seed, s.tier.name)["hidden"]
    draw = random.Random(s.seed)
    while True:
        mixed = draw.sample([*WAYS, *("full", "selective")], len(widths))
        full, reversed_full = (
            sum(width for width, way in zip(widths, plan, strict=True) if way == "full")
            for plan in (mixed, mixed[::-1])
        )
        if abs(full - reversed_full) > IN_ANOTHER_ORDER * full:
            return [*([way] * len(widths) for way in WAYS), mixed]


def run(s: Session, check: str, dropout: float = on_ranks.DROPOUT) -> list[dict]:
    """Return the submission's reply for each plan."""
    return s.order(check, "recompute", **_arguments(s, dropout), plans=plans(s))[0]


def plain_run(s: Session, dropout: float = on_ranks.DROPOUT) -> dict:
    """Return what the model that keeps all replies: no gradient differs by the plan."""
    return s.order_reference("plain", **_arguments(s, dropout))[0]


def _arguments(s: Session, dropout: float) -> dict:
    return dict(world_size=1, seed=s.seed, tier=s.tier.name, dropout=dropout)


def judge(s: Session, check: str, points: float) -> Verdict:
    errors = _errors(run(s, check), plain_run(s))
    worst, name = max(step for steps in errors for step in steps)
    figures = {"furthest gradient, relative": (f"{worst:.1e}, {name}", f"{TOLERANCE:g}")}
    if worst <= TOLERANCE:
        return Verdict(check, points, points, "gradients are those of the model without recomputation.", "", figures)
    words = [", ".join(plan) for plan in plans(s)]
    bad = next(i for i, steps in enumerate(errors) if max(steps)[0] > TOLERANCE)
    return Verdict(check, 0, points, f"with the plan {words[bad]}: {_cause(s, check, errors, bad)}", "", figures)


def _errors(mine: list[dict], plain: dict) -> list[list[tuple[float, str]]]:
    """Return each plan's furthest gradient, as (relative error, name), in the first step and in the second."""
    return [
        [_furthest(m, p) for m, p in zip(of_plan["gradients"], plain["gradients"], strict=True)] for of_plan in mine
    ]


def _furthest(mine: dict, plain: dict) -> tuple[float, str]:
    missing = [(math.inf, name) for name in plain if name not in mine]
    return max([(off, name) for name, off in gradients_off(mine, plain).items()] + missing)


def missing_gradients(of_plan: dict, plain: dict) -> list[str]:
    """Return the parameters that get a gradient without recomputation, and none in some step of this plan."""
    return [name for name in plain["gradients"][0] if any(name not in step for step in of_plan["gradients"])]


def _cause(s: Session, check: str, errors: list[list[tuple[float, str]]], bad: int) -> str:
    mine, plain = run(s, check)[bad], plain_run(s)
    (first, name), (second, name_2) = errors[bad]
    if missing := missing_gradients(mine, plain):
        return f"{missing[0]} gets no gradient."
    dry, dry_name = max(_errors(run(s, check, dropout=0.0), plain_run(s, dropout=0.0))[bad])
    if dry > TOLERANCE:
        return f"the gradient of {dry_name} is wrong even without dropout."
    if first > TOLERANCE:
        return (
            f"without dropout they are right, with it {name}'s is off by {first:.0%}: the second forward draws other "
            "masks than the first."
        )
    if mine["generator"][0] != plain["generator"][0]:
        return (
            "the first step is right, the second is not: after a backward the random generator stands elsewhere than "
            "without recomputation."
        )
    return f"the first step is right; in the second, {name_2}'s gradient is off by {second:.0%}, only with dropout."
