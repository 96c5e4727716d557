"""The checks of lab 2, in the order of the notebook."""

from grading.checks.lab2_ddp import gradients, memory, on_ranks, plan, step_checks, throughput
from grading.judge.submission_run import Check

DRILLS = on_ranks.__name__
pace = step_checks.reference_account

CHECKS = {
    "lab2.gradients": Check(4, gradients.judge),
    "lab2.traffic": Check(2, step_checks.judge_traffic),
    "lab2.overlap": Check(2, step_checks.judge_overlap),
    "lab2.memory": Check(2, memory.judge),
    "lab2.throughput": Check(2, throughput.judge, timed=True),
    "lab2.plan": Check(3, plan.judge),
}

COLUMNS = {"lab2.memory": "MiB a rank\npeak / kept", "lab2.throughput": "step time\n/ DDP's"}
