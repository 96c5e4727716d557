"""The checks of lab 3, in the order of the notebook."""

from grading.checks.lab3_zero import memory, norm, on_ranks, overlap, owners, skip, traffic, update
from grading.checks.lab3_zero.sharded import of_sharded
from grading.judge.session import Check, Ground, Session

DRILLS = on_ranks.__name__


def pace(s: Session) -> None:
    s.order_reference("train", **update.unclipped(s)._asdict())


CHECKS = {
    "lab3.shards": Check(2, owners.judge),
    "lab3.update": Check(4, of_sharded(update.judge)),
    "lab3.norm": Check(2, of_sharded(norm.judge)),
    "lab3.skip": Check(2, of_sharded(skip.judge)),
    "lab3.memory": Check(4, of_sharded(memory.judge), ground=Ground.SEEN),
    "lab3.traffic": Check(2, of_sharded(traffic.judge), ground=Ground.CLAIMED),
    "lab3.overlap": Check(2, of_sharded(overlap.judge), ground=Ground.CLAIMED),
}
