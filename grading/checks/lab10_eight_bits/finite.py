"""Check that a number that is not finite reaches the owner of its element, and is gone in the next call."""

from grading.checks.lab10_eight_bits import on_ranks
from grading.judge.session import Session
from grading.judge.verdict import Verdict


def judge(s: Session, check: str, points: float) -> Verdict:
    replies = s.order(check, "poisoned", device="cpu", seed=s.seed)
    for rank, reply in enumerate(replies):
        if words := next((call["form"] for call in reply if call["form"]), ""):
            return Verdict(check, 0, points, f"on rank {rank} {words}.")
    for k, (value, _) in enumerate(on_ranks.POISONS):
        calls = [reply[k] for reply in replies]
        if not any(call["shown"] for call in calls):
            owner = next(rank for rank, call in enumerate(calls) if call["here"])
            cause = f"one rank's gradient had {value}, and its element is finite on rank {owner}, which keeps it."
            return Verdict(check, 0, points, cause)
        if left := sum(call["left over"] for call in calls):
            cause = f"after a call with {value}, the next one has {left} elements that are not finite."
            return Verdict(check, 0, points, cause)
    return Verdict(check, points, points, "nan and inf reach the owner of their element, and are gone afterwards.")
