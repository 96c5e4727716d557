"""The checks of lab 9, in the order of the notebook."""

from grading.checks.lab9_experts import (
    judge_gradients,
    judge_outputs,
    judge_placement,
    judge_sent_bytes,
    on_ranks,
    replies_and_errors,
)
from grading.judge.session import Check, Ground

DRILLS = on_ranks.__name__
pace = replies_and_errors.pace

CHECKS = {
    "lab9.outputs": Check(3, judge_outputs.judge),
    "lab9.gradients": Check(5, judge_gradients.judge),
    "lab9.bytes": Check(5, judge_sent_bytes.judge, ground=Ground.CLAIMED),
    "lab9.placement": Check(5, judge_placement.judge),
}
