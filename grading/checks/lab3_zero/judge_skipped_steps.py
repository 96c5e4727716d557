"""Judge whether one non-finite element, on one rank, skips the step on all ranks, and changes nothing else.

The submission's run with poisoned steps is compared with its own run without these steps, so a wrong update does not
matter here.
"""

import math
import random

import torch

from grading.checks.lab3_zero import on_ranks
from grading.checks.lab3_zero.judge_update import ask, error_of, setting
from grading.checks.lab3_zero.truth import Setting
from grading.judge.session import Session
from grading.judge.tensor_projections import vector
from grading.judge.verdict import Verdict, named_ranks

# The ends of the names of parameters: each draw poisons one element of each, in this order but for chance
POISONED = ("scale", "embedding.weight", ".weight", ".bias", "out.weight")
VALUES = ("nan", "inf", "-inf")
MICRO_BATCHES = 2
TOLERANCE = 1e-4  # relative, of a parameter's change; the same sums are taken twice, and so rounded alike
NO_CLIPPING = 1e3
NOTHING_MOVES = "a healthy step changes no weight where the kernel reads it, so nothing can be said: see lab3.update."


def judge(s: Session, check: str, points: float) -> Verdict:
    run = drawn(s)
    without = tuple(step._replace(poison=None, left_out=bool(step.poison)) for step in run.plan)
    replies, healthy = ask(s, check, run), ask(s, check, run._replace(plan=without))
    for k, step in enumerate(run.plan):
        cause = _poisoned(run, replies, k) if step.poison else _healthy(replies, healthy, k)
        if cause:
            return Verdict(check, 0, points, f"step {k + 1}: {cause}")
    words = "a step with a gradient that is not finite changes nothing on any rank, and the next one is right."
    return Verdict(check, points, points, words)


def drawn(s: Session) -> Setting:
    """Draw the poisoned steps: each kind of parameter, value and micro-batch, and as many ranks as there are.

    A healthy step comes before and after each. The optimizer is AdamW, whose states would keep traces of a step not
    skipped.
    """
    draw, n = random.Random(s.seed), s.tier.world_size
    sizes = {name: p.numel() for name, p in on_ranks.build(0, on_ranks.SMALL).named_parameters()}
    kinds, ranks = draw.sample(POISONED, len(POISONED)), draw.sample(range(n), n)
    plan: list[tuple] = [(MICRO_BATCHES, 1.0)]
    for i, kind in enumerate(kinds):
        name = kind if kind in sizes else draw.choice([x for x in sizes if x.startswith("blocks") and x.endswith(kind)])
        where = ranks[i % n], name, draw.randrange(sizes[name])
        poison = on_ranks.Poison(*where, VALUES[i % len(VALUES)], (i + s.seed) % MICRO_BATCHES)
        plan += [(MICRO_BATCHES, 1.0, poison), (MICRO_BATCHES, 1.0)]
    return setting(s, "AdamW", NO_CLIPPING, plan)


def _poisoned(run: Setting, replies: list, k: int) -> str:
    poison = run.plan[k].poison
    changed = [rank for rank, reply in enumerate(replies) if reply[k]["bits"] != reply[k - 1]["bits"]]
    finite = [rank for rank, reply in enumerate(replies) if math.isfinite(reply[k]["norm"])]
    one = (
        f"rank {poison.rank} had one {poison.value} in its gradient of {poison.parameter}, in micro-batch "
        f"{poison.micro_batch + 1} of {MICRO_BATCHES}"
    )
    if infinite := [r for r in changed if not torch.isfinite(vector(replies[r][k]["change"])).all()]:
        return f"{one}, and now weights of {named_ranks(infinite)} are not finite."
    if changed:
        returned = "; every rank returned a finite norm" if len(finite) == len(replies) else ""
        return f"{one}, and the weights of {named_ranks(changed)} have changed all the same{returned}."
    if finite:
        return f"{one}, but {named_ranks(finite)} returned a finite norm, {replies[finite[0]][k]['norm']:.4g}."
    return ""


def _healthy(replies: list, healthy: list, k: int) -> str:
    if k == 0 and all(vector(reply[0]["change"]).norm() == 0 for reply in replies):
        return NOTHING_MOVES
    pairs = [(vector(a[k]["change"]), vector(b[k]["change"])) for a, b in zip(replies, healthy, strict=True)]
    if max(error_of(a, b) for a, b in pairs) <= TOLERANCE:
        return ""
    if k and all(reply[k]["bits"] == reply[k - 1]["bits"] for reply in replies):
        return "every gradient was finite, but no weight has changed, after a step that had to be skipped."
    return "every gradient was finite, but the weights are not those that your engine gets without the skipped steps."
