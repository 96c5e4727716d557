"""Compare the time of a step with that of torch's DDP with the same buckets; their laps alternate."""

from functools import partial

from grading.checks.lab2_ddp import on_ranks
from grading.checks.lab2_ddp.judge_gradients import lap_proof_of
from grading.judge.session import Session
from grading.judge.tensor_projections import distance, vector
from grading.judge.timed_laps import Lap, race
from grading.judge.timing_verdict import race_verdict
from grading.judge.verdict import Verdict

SLOWEST = 1.35  # step time over torch DDP's
PROOF_TOLERANCE = 0.05


def judge(s: Session, check: str, points: float) -> Verdict:
    proof, tier = partial(_right_gradients, s.tier.name), s.tier.name
    timing = race(s, check, "laps", bars=(SLOWEST,), proof=proof, cap_mb=on_ranks.cap_mb(s.seed), tier=tier)
    return race_verdict(
        check,
        points,
        timing,
        SLOWEST,
        beside="torch DDP's",
        fast="as fast as torch's DDP, within what is asked.",
        slow="a step takes {ratio:.2f} times as long as with torch's DDP.",
        idle="the timed steps did not compute the right gradients, so their time says nothing: see lab2.gradients.",
    )


def _right_gradients(tier: str, lap: Lap) -> bool:
    def off(step: int) -> float:
        due = lap_proof_of(lap.seed, len(lap.replies), step=step, tier=tier)
        return max(distance(vector(r["steps"][step]), due) for r in lap.replies)

    return max(map(off, range(on_ranks.STEPS_OF_A_LAP))) <= PROOF_TOLERANCE
