"""The checks of lab 5, in the order of the notebook."""

from grading.checks.lab5_precision_recompute import (
    judge_held_between_steps,
    judge_matches_fp32,
    judge_peak_losses_flops,
    judge_plan,
    judge_recompute_savings,
    judge_recomputed_gradients,
    judge_wire,
    on_ranks,
)
from grading.judge.session import Check, Ground

DRILLS = on_ranks.__name__
pace = judge_matches_fp32.reference_run

CHECKS = {
    "lab5.held": Check(2, judge_held_between_steps.judge, ground=Ground.CLAIMED),
    "lab5.wire": Check(2, judge_wire.judge, ground=Ground.CLAIMED),
    "lab5.curve": Check(3, judge_matches_fp32.judge),
    "lab5.plan": Check(3, judge_plan.judge),
    "lab5.gradients": Check(2, judge_recomputed_gradients.judge),
    "lab5.price": Check(2, judge_recompute_savings.judge, ground=Ground.CLAIMED),
    "lab5.budget": Check(4, judge_peak_losses_flops.judge, ground=Ground.CLAIMED),
}
