"""The checks of lab 1, in the order of the notebook."""

from grading.checks.lab1_memory import judge_counts, on_ranks
from grading.checks.lab1_memory.judge_predictions import Judge
from grading.judge.session import Check, Session

DRILLS = on_ranks.__name__

CHECKS = {
    "lab1.counts": Check(2, judge_counts.judge),
    "lab1.one_rank": Check(3, Judge("one_rank", 1)),
    "lab1.ddp": Check(2, Judge("ddp", 1)),
    "lab1.zero1": Check(2, Judge("zero1", 1)),
    "lab1.fsdp": Check(3, Judge("fsdp", 1)),
    "lab1.fsdp_bf16": Check(3, Judge("fsdp_bf16", 1)),
}


def pace(s: Session) -> None:
    """Measure one small setup with the reference on two ranks."""
    setup = dict(V=64, D=32, L=2, H=2, K=1, E=16, F=64, N=2, B=1, T=16)
    s.order_reference("measure", world_size=2, device="cpu", program="ddp", setups=[setup])
