"""The checks of lab 5, in the order of the notebook."""

from grading.checks.lab5_precision_recompute import budget, curve, gradients, held, on_ranks, plan, price, wire
from grading.judge.submission_run import Check

DRILLS = on_ranks.__name__
pace = curve.reference_run

CHECKS = {
    "lab5.held": Check(2, held.judge),
    "lab5.wire": Check(2, wire.judge),
    "lab5.curve": Check(3, curve.judge),
    "lab5.plan": Check(3, plan.judge),
    "lab5.gradients": Check(2, gradients.judge),
    "lab5.price": Check(2, price.judge),
    "lab5.budget": Check(4, budget.judge),
}
HIDDEN = ("cast_forward_inputs", "mp_policy=exact", "fully_shard(block.memory")
