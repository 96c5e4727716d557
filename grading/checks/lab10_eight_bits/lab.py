"""The checks of lab 10, in the order of the notebook."""

from grading.checks.lab10_eight_bits import (
    judge_gathered_weights,
    judge_nonfinite,
    judge_stale_weights,
    judge_unbiased,
    judge_wire,
    on_ranks,
)
from grading.judge.session import Check, Ground, Session

DRILLS = on_ranks.__name__
GIVEN_CELLS = ("program",)  # the answer's messages are those of the given program, in eight bits


def pace(s: Session) -> None:
    s.order_reference("wire", device="cpu", seed=s.seed, call="gather")


CHECKS = {
    "lab10.scales": Check(4, judge_gathered_weights.judge),
    "lab10.steps": Check(3, judge_stale_weights.judge),
    "lab10.unbiased": Check(5, judge_unbiased.judge),
    "lab10.finite": Check(1, judge_nonfinite.judge),
    "lab10.wire": Check(4, judge_wire.judge, ground=Ground.SEEN),
}
