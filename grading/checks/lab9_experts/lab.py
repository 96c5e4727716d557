"""The checks of lab 9, in the order of the notebook."""

from grading.checks.lab9_experts import compared, gradients, on_ranks, outputs, placement, sent_bytes
from grading.judge.session import Check, Ground

DRILLS = on_ranks.__name__
pace = compared.pace

CHECKS = {
    "lab9.outputs": Check(3, outputs.judge),
    "lab9.gradients": Check(5, gradients.judge),
    "lab9.bytes": Check(5, sent_bytes.judge, ground=Ground.CLAIMED),
    "lab9.placement": Check(5, placement.judge),
}
