"""The checks of lab 7, in the order of the notebook."""

from grading.checks.lab7_debug import diagnose, differing, expert_balance, hang, memory, on_ranks, resume
from grading.judge.session import Check, Ground

DRILLS = on_ranks.__name__
pace = hang.reference_run
GIVEN_CELLS = ("broken_training", "broken_experts", "broken_accumulation", "broken_checkpoint")  # the cells to repair

CHECKS = {
    "lab7.diagnose": Check(3, diagnose.judge),
    "lab7.hang": Check(4, hang.judge),
    "lab7.differing": Check(3, differing.judge),
    "lab7.experts": Check(3, expert_balance.judge),
    "lab7.memory": Check(4, memory.judge, ground=Ground.SEEN),
    "lab7.resume": Check(3, resume.judge),
    "lab7.resharding": Check(2, resume.judge_resharding),
}
