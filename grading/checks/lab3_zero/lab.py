"""The checks of lab 3, in the order of the notebook."""

from grading.checks.lab3_zero import judge_memory_traffic_overlap, norm, on_ranks, owners, skip, update
from grading.judge.session import Check, Session

DRILLS = on_ranks.__name__


def pace(s: Session) -> None:
    s.order_reference("train", **update.unclipped(s)._asdict())


CHECKS = {
    "lab3.shards": Check(2, owners.judge),
    "lab3.update": Check(4, update.judge),
    "lab3.norm": Check(2, norm.judge),
    "lab3.skip": Check(2, skip.judge),
    "lab3.memory": Check(4, judge_memory_traffic_overlap.judge_memory),
    "lab3.traffic": Check(2, judge_memory_traffic_overlap.judge_traffic),
    "lab3.overlap": Check(2, judge_memory_traffic_overlap.judge_overlap),
}
