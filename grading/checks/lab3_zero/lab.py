"""The checks of lab 3, in the order of the notebook."""

from grading.checks.lab3_zero import (
    judge_memory,
    judge_norm,
    judge_overlap,
    judge_owners,
    judge_skipped_steps,
    judge_traffic,
    judge_update,
    on_ranks,
)
from grading.checks.lab3_zero.refuse_unsharded import of_sharded
from grading.judge.session import Check, Ground, Session

DRILLS = on_ranks.__name__


def pace(s: Session) -> None:
    s.order_reference("train", **judge_update.unclipped(s)._asdict())


CHECKS = {
    "lab3.shards": Check(2, judge_owners.judge),
    "lab3.update": Check(4, of_sharded(judge_update.judge)),
    "lab3.norm": Check(2, of_sharded(judge_norm.judge)),
    "lab3.skip": Check(2, of_sharded(judge_skipped_steps.judge)),
    "lab3.memory": Check(4, of_sharded(judge_memory.judge), ground=Ground.SEEN),
    "lab3.traffic": Check(2, of_sharded(judge_traffic.judge), ground=Ground.CLAIMED),
    "lab3.overlap": Check(2, of_sharded(judge_overlap.judge), ground=Ground.CLAIMED),
}
