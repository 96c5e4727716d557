"""Compare the weights with the truth, read where a compiled kernel reads them, after several steps.

First with SGD: its update is linear in the gradient, so every usual mistake is another combination of the same parts.
Then with clipping: with SGD, which shows every factor, and gradients so small that clipping's 1e-6 counts; with AdamW.
"""

import math
import random

import torch

from grading.checks.errors_with_nan import largest
from grading.checks.lab3_zero import on_ranks
from grading.checks.lab3_zero.refuse_unsharded import refuse_unsharded
from grading.checks.lab3_zero.truth import CLIPPED_WRONGLY, COMBINED_WRONGLY, Setting, Step, simulate
from grading.judge.session import Session
from grading.judge.tensor_projections import N_DIRECTIONS, distance, vector
from grading.judge.verdict import Verdict

TOLERANCE = 3e-4  # relative, of each parameter's change; rounding gives at most 2e-5, every mistake more than 1e-3
SAME = 1e-2  # relative distance from a simulated mistake
NO_CLIPPING = 1e9
TINY = "SGD of tiny gradients"
BY_CHANCE = 3  # this many elements may end where they started
MOVED = "or in it, p.data points to other memory than at first: the kernel has noted the old addresses."
N_ELEMENTS = sum(p.numel() for p in on_ranks.build(0, on_ranks.SMALL).parameters())


def judge(s: Session, check: str, points: float) -> Verdict:
    """Judge SGD without clipping, then SGD and AdamW with it: no points if the first is wrong, half if another is."""
    clipping, figures = {words: {"clip": f} for words, f in CLIPPED_WRONGLY.items()}, {}
    for run, mistakes, got in (
        (unclipped(s), {words: {"combine": f} for words, f in COMBINED_WRONGLY.items()}, 0.0),
        (clipped_a_little(s), clipping, points / 2),
        (clipped(s), clipping, points / 2),
    ):
        cause, error = _find_fault(run, ask(s, check, run), simulate(run), mistakes)
        of = f"{run.optimizer}{', clipped' if run.max_norm < NO_CLIPPING else ''}"
        figures[f"relative error of a parameter's change, {of}"] = (f"{error:.1e}", f"{TOLERANCE:g}")
        if cause:
            return Verdict(check, got, points, cause, "", figures)
    cause = "every rank has the weights of one process, where they always were."
    return Verdict(check, points, points, cause, "", figures)


def unclipped(s: Session) -> Setting:
    return setting(s, "SGD", NO_CLIPPING, [(2, 1.0), (1, 2.0), (3, 1.0)])


def clipped_a_little(s: Session) -> Setting:
    """Return a run as `clipped`'s, whose gradients are so small that the 1e-6 beside their norm is more than 1%.

    It has one rank less than the others, so that no number of ranks can stand in an answer.
    """
    plan, n = [(1, 2e-5), (2, 8e-5), (1, 1e-5), (2, 1.2e-4)], max(2, s.tier.world_size - 1)
    first = simulate(setting(s, TINY, NO_CLIPPING, plan[:1], n))[0].norm
    return setting(s, TINY, 1.5 * first, plan, n)


def clipped(s: Session) -> Setting:
    """Return a run whose max_norm lies between the norms: steps 1 and 3 are not clipped, steps 2 and 4 are."""
    plan = [(1, 1.0), (2, 12.0), (1, 0.5), (2, 16.0)]
    first = simulate(setting(s, "AdamW", NO_CLIPPING, plan[:1]))[0].norm
    return setting(s, "AdamW", 1.5 * first, plan)


def setting(s: Session, optimizer: str, max_norm: float, plan: list[tuple], world_size: int = 0) -> Setting:
    """Return the setting of a run, with a drawn small bucket size for which the last bucket has one element.

    It has as many ranks as the tier, if no other number is given.
    """
    cap_mb = random.Random(s.seed).choice((8, 10, 12)) / 1024
    shares = tuple(on_ranks.shares(s.seed, world_size or s.tier.world_size))
    return Setting(s.seed, cap_mb, shares, optimizer, max_norm, tuple(on_ranks.PlannedStep(*step) for step in plan))


def ask(s: Session, check: str, run: Setting) -> list[list[dict]]:
    replies = s.order(check, "train", world_size=len(run.shares), **run._asdict())
    steps = range(len(run.plan))
    refuse_unsharded([max(reply[k]["updates"] for k in steps) for reply in replies], N_ELEMENTS)
    return replies


def _find_fault(run: Setting, replies: list, truth: list[Step], mistakes: dict) -> tuple[str, float]:
    """Return the fault in words ("" if none), and the relative error: the faulty step's, else the largest."""
    worst = 0.0
    for k, right in enumerate(truth):
        mine = [vector(reply[k]["change"]) for reply in replies]
        error = max(error_of(v, right.change) for v in mine)
        worst = max(worst, error)
        still = {name: n - right.still[name] for name, n in replies[0][k]["still"].items() if n > right.still[name]}
        if any(reply[k]["moved"] for reply in replies):
            return f"after step {k + 1} {MOVED}", error
        if error > TOLERANCE:
            return _diagnosis(k, run, replies, still, mistakes), error
        if _differ(replies, k):
            return f"after step {k + 1} the ranks' weights differ, if only in their last bits.", error
    return "", worst


def _diagnosis(k: int, run: Setting, replies: list, still: dict, mistakes: dict) -> str:
    n, micro_batches = len(run.shares), run.plan[k].micro_batches
    step = f"after step {k + 1} ({run.optimizer}, ranks: {n}, micro-batches: {micro_batches}) "
    if not all(torch.isfinite(vector(reply[k]["change"])).all() for reply in replies):
        return step + "weights are not finite."
    errors = {words: _errors(replies, simulate(run, **how)) for words, how in mistakes.items()}
    told_by = slice(k, k + 1) if run.max_norm == NO_CLIPPING else slice(None)  # all: some steps are clipped little
    likely = [words for words, by_step in errors.items() if max(by_step[told_by]) <= SAME]
    if likely:
        return step + min(likely, key=lambda words: max(errors[words]))
    if _differ(replies, k):
        return step + "the weights are wrong, and they differ between ranks."
    if k and all(reply[k]["bits"] == reply[k - 1]["bits"] for reply in replies):
        return step + "the weights are what they were a step before."
    if sum(still.values()) > BY_CHANCE:
        where = f"{sum(still.values())} of {N_ELEMENTS} elements have never changed, in {', '.join(list(still)[:3])}"
        return step + f"{where}."
    if k:
        clipped = f" The norm is {simulate(run)[k].norm:.3g}, and max_norm {run.max_norm:.3g}."
        return step + f"the weights are wrong, and right a step before.{clipped if run.max_norm < NO_CLIPPING else ''}"
    return step + "the weights differ from those that one process gets with the mean gradient."


def _errors(replies: list, steps: list[Step]) -> list[float]:
    """Return each step's error on the worst rank."""
    return [max(distance(vector(r[k]["change"]), step.change) for r in replies) for k, step in enumerate(steps)]


def error_of(mine: torch.Tensor, right: torch.Tensor) -> float:
    """Return the error of the parameter whose change is worst, relative to that change."""
    if mine.shape != right.shape:
        return math.inf
    pairs = zip(mine.split(N_DIRECTIONS), right.split(N_DIRECTIONS), strict=True)
    return largest(0.0 if torch.equal(a, b) else distance(a, b) for a, b in pairs)


def _differ(replies: list, k: int) -> bool:
    return len({reply[k]["bits"] for reply in replies}) > 1
