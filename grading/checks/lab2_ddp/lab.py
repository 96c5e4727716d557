"""The checks of lab 2, in the order of the notebook."""

from grading.checks.lab2_ddp import (
    judge_bucket_plan,
    judge_gradients,
    judge_memory,
    judge_throughput,
    judge_traffic_and_overlap,
    on_ranks,
)
from grading.judge.session import Check, Ground

DRILLS = on_ranks.__name__
pace = judge_traffic_and_overlap.reference_account

CHECKS = {
    "lab2.gradients": Check(4, judge_gradients.judge),
    "lab2.traffic": Check(2, judge_traffic_and_overlap.judge_traffic, ground=Ground.SEEN),
    "lab2.overlap": Check(2, judge_traffic_and_overlap.judge_overlap, ground=Ground.CLAIMED),
    "lab2.memory": Check(2, judge_memory.judge, ground=Ground.SEEN),
    "lab2.throughput": Check(2, judge_throughput.judge, timed=True, ground=Ground.SEEN),
    "lab2.plan": Check(3, judge_bucket_plan.judge),
}

COLUMNS = {"lab2.memory": "MiB a rank\npeak / kept", "lab2.throughput": "step time\n/ DDP's"}
