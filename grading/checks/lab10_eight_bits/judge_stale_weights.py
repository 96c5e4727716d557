"""Look at ten steps of one engine: does it send the weights of this step, and leave what it is given as it was?"""

from grading.checks.lab10_eight_bits import draw, judge_gathered_weights, on_ranks
from grading.judge.session import Session
from grading.judge.verdict import Verdict


def judge(s: Session, check: str, points: float) -> Verdict:
    replies = s.order(check, "steps", device="cpu", seed=s.seed)
    instance = draw.one_instance(s.seed, s.tier.world_size, rows=20)
    whole = draw.weights(instance, s.seed)
    for step in range(on_ranks.N_STEPS):
        mine = [reply[step] for reply in replies]
        for what, call in (("shard", "gather"), ("gradient", "reduce")):
            if ranks := [rank for rank, reply in enumerate(mine) if reply[f"{what} changed"]]:
                cause = f"step {step + 1}: on rank {ranks[0]} `{call}` changed the {what} that it was given."
                return Verdict(check, 0, points, cause)
        if words := judge_gathered_weights.fault(mine, draw.flat(whole), instance):
            right = "the first step is right; " if step else ""
            return Verdict(check, 0, points, f"step {step + 1}: {right}{words}")
        whole = draw.updated(whole, s.seed, step)
    cause = "every step sends its own weights, and the masters stay as the optimizer left them."
    return Verdict(check, points, points, cause)
