"""The checks of lab 6, in the order of the notebook."""

from grading.checks.lab6_profile import judge_memory_and_messages, on_ranks, prefetch, reading, same, throughput
from grading.judge.session import Check, Ground

DRILLS = on_ranks.__name__
pace = judge_memory_and_messages.reference_account

CHECKS = {
    "lab6.shares": Check(4, reading.judge_shares),
    "lab6.hidden": Check(2, reading.judge_hidden),
    "lab6.same": Check(3, same.judge),
    "lab6.memory": Check(2, judge_memory_and_messages.judge_memory, ground=Ground.CLAIMED),
    "lab6.messages": Check(2, judge_memory_and_messages.judge_messages, ground=Ground.CLAIMED),
    "lab6.prefetch": Check(2, prefetch.judge, ground=Ground.CLAIMED),
    "lab6.throughput": Check(4, throughput.judge, timed=True, ground=Ground.SEEN),
}
