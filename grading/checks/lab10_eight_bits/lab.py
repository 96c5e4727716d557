"""The checks of lab 10, in the order of the notebook."""

from grading.checks.lab10_eight_bits import finite, on_ranks, scales, steps, unbiased, wire
from grading.judge.session import Check, Ground, Session

DRILLS = on_ranks.__name__
GIVEN_CELLS = ("program",)  # the answer's messages are those of the given program, in eight bits


def pace(s: Session) -> None:
    s.order_reference("wire", device="cpu", seed=s.seed, call="gather")


CHECKS = {
    "lab10.scales": Check(4, scales.judge),
    "lab10.steps": Check(3, steps.judge),
    "lab10.unbiased": Check(5, unbiased.judge),
    "lab10.finite": Check(1, finite.judge),
    "lab10.wire": Check(4, wire.judge, ground=Ground.SEEN),
}
