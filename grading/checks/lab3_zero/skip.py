"""Judge whether one non-finite element, on one rank, skips the step on all ranks, and changes nothing else.

The submission's run with poisoned steps is compared with its own run without these steps, so a wrong update does not
matter here.
"""

import math
import random

import torch

from grading.checks.lab3_zero import on_ranks
from grading.checks.lab3_zero.truth import Setting
from grading.checks.lab3_zero.update import ask, setting
from grading.judge.session import Session
from grading.judge.tensor_projections import distance, vector
from grading.judge.verdict import Verdict

POISONS = (None, "nan", None, "inf", None)  # the non-finite value in each step's gradient
TOLERANCE = 1e-3  # relative
NO_CLIPPING = 1e3
NOTHING_MOVES = "a healthy step changes no weight where the kernel reads it, so nothing can be said: see lab3.update."


def judge(s: Session, check: str, points: float) -> Verdict:
    run = drawn(s)
    without = tuple(step._replace(poison=None, left_out=bool(step.poison)) for step in run.plan)
    replies, healthy = ask(s, check, run), ask(s, check, run._replace(plan=without))
    for k, step in enumerate(run.plan):
        cause = _poisoned(replies, k, step.poison) if step.poison else _healthy(replies, healthy, k)
        if cause:
            return Verdict(check, 0, points, f"step {k + 1}: {cause}")
    words = "a step with a gradient that is not finite changes nothing on any rank, and the next one is right."
    return Verdict(check, points, points, words)


def drawn(s: Session) -> Setting:
    """Draw the poisoned steps. The optimizer is AdamW, whose states would keep traces of a step not skipped."""
    draw = random.Random(s.seed)
    sizes = {name: p.numel() for name, p in on_ranks.build(0, on_ranks.SMALL).named_parameters()}
    plan = []
    for value in POISONS:
        name = draw.choice([name for name in sizes if name.startswith("blocks") and name.endswith("weight")])
        poison = on_ranks.Poison(draw.randrange(s.tier.world_size), name, draw.randrange(sizes[name]), value)
        plan.append((2, 1.0, poison if value else None))
    return setting(s, "AdamW", NO_CLIPPING, plan)


def _poisoned(replies: list, k: int, poison: on_ranks.Poison) -> str:
    changed = [rank for rank, reply in enumerate(replies) if reply[k]["bits"] != reply[k - 1]["bits"]]
    one = f"rank {poison.rank} had one {poison.value} in its gradient"
    if changed and not all(torch.isfinite(vector(reply[k]["change"])).all() for reply in replies):
        return f"{one}, and now weights are not finite: the step was not skipped, or not by the owner."
    if len(changed) == len(replies) and all(math.isfinite(reply[k]["norm"]) for reply in replies):
        return f"{one}, in the first micro-batch, and every rank updated its weights: nobody has seen it."
    if changed:
        return (
            f"{one}, and the weights of {_ranks(changed)} have changed all the same: whoever does not own that element "
            "sees nothing in its own slices, so all must decide by something that all of them have."
        )
    finite = [rank for rank, reply in enumerate(replies) if math.isfinite(reply[k]["norm"])]
    if finite:
        return f"{one}, but {_ranks(finite)} returned a finite norm, {replies[finite[0]][k]['norm']:.4g}."
    return ""


def _healthy(replies: list, healthy: list, k: int) -> str:
    if k == 0 and all(vector(reply[0]["change"]).norm() == 0 for reply in replies):
        return NOTHING_MOVES
    pairs = [(vector(a[k]["change"]), vector(b[k]["change"])) for a, b in zip(replies, healthy, strict=True)]
    if max(distance(a, b) for a, b in pairs) <= TOLERANCE:
        return ""
    if k and all(reply[k]["bits"] == reply[k - 1]["bits"] for reply in replies):
        return "a healthy step was skipped as well, after one that had to be."
    return "the step after a skipped one is wrong: something of the skipped step was kept, in gradients or in states."


def _ranks(ranks: list[int]) -> str:
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))
