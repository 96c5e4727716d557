"""The checks of lab 6, in the order of the notebook."""

from grading.checks.lab6_profile import (
    judge_memory_and_messages,
    judge_prefetch,
    judge_reading,
    judge_same_training,
    judge_throughput,
    on_ranks,
)
from grading.judge.session import Check, Ground

DRILLS = on_ranks.__name__
pace = judge_memory_and_messages.reference_account

CHECKS = {
    "lab6.shares": Check(4, judge_reading.judge_shares),
    "lab6.hidden": Check(2, judge_reading.judge_hidden),
    "lab6.same": Check(3, judge_same_training.judge),
    "lab6.memory": Check(2, judge_memory_and_messages.judge_memory, ground=Ground.CLAIMED),
    "lab6.messages": Check(2, judge_memory_and_messages.judge_messages, ground=Ground.CLAIMED),
    "lab6.prefetch": Check(2, judge_prefetch.judge, ground=Ground.CLAIMED),
    "lab6.throughput": Check(4, judge_throughput.judge, timed=True, ground=Ground.SEEN),
}
