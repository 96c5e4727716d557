"""Check that a number that is not finite reaches the owner of its element, and that the next call is right again."""

import torch

from grading.checks.lab10_eight_bits import draw, judge_unbiased, on_ranks
from grading.judge.session import Session
from grading.judge.verdict import Verdict


def judge(s: Session, check: str, points: float) -> Verdict:
    replies = s.order(check, "poisoned", device="cpu", seed=s.seed)
    instance = draw.one_instance(s.seed, len(replies), rows=20)
    for rank, reply in enumerate(replies):
        if words := next((call["form"] for call in reply if call["form"]), ""):
            return Verdict(check, 0, points, f"on rank {rank} {words}.")
    before = torch.cat([on_ranks.unpacked(reply[0]["before"], torch.float64) for reply in replies])
    was_right = not judge_unbiased.wrong_call(before, judge_unbiased.problem_of(instance, s.seed, len(replies)))
    for k, (value, _) in enumerate(on_ranks.POISONS):
        calls = [reply[k] for reply in replies]
        if not any(call["shown"] for call in calls):
            owner = next(rank for rank, call in enumerate(calls) if call["here"])
            cause = f"one rank's gradient had {value}, and its element is finite on rank {owner}, which keeps it."
            return Verdict(check, 0, points, cause)
        good = torch.cat([on_ranks.unpacked(call["good"], torch.float64) for call in calls])
        words = judge_unbiased.wrong_call(good, judge_unbiased.problem_of(instance, s.seed + k, len(replies)))
        if words and (was_right or not torch.isfinite(good).all()):
            return Verdict(check, 0, points, f"after a call with {value}, the next one is wrong: {words}")
    return Verdict(check, points, points, "nan and inf reach the owner of their element, and are gone afterwards.")
