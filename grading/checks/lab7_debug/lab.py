"""The checks of lab 7, in the order of the notebook."""

from grading.checks.lab7_debug import (
    judge_differing_tensors,
    judge_expert_balance,
    judge_faulty_rank_tool,
    judge_hang,
    judge_memory,
    judge_resume,
    on_ranks,
)
from grading.judge.session import Check, Ground

DRILLS = on_ranks.__name__
pace = judge_hang.reference_run
GIVEN_CELLS = ("broken_training", "broken_experts", "broken_accumulation", "broken_checkpoint")  # the cells to repair

CHECKS = {
    "lab7.diagnose": Check(3, judge_faulty_rank_tool.judge),
    "lab7.hang": Check(4, judge_hang.judge),
    "lab7.differing": Check(3, judge_differing_tensors.judge),
    "lab7.experts": Check(3, judge_expert_balance.judge),
    "lab7.memory": Check(4, judge_memory.judge, ground=Ground.SEEN),
    "lab7.resume": Check(3, judge_resume.judge),
    "lab7.resharding": Check(2, judge_resume.judge_resharding),
}
