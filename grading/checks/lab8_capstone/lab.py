"""The checks of lab 8, in the order of the notebook."""

from grading.checks.lab8_capstone import judge_tokens_per_s, judge_weights_memory_links, on_ranks
from grading.judge.session import Check, Ground

DRILLS = on_ranks.__name__
pace = judge_weights_memory_links.pace
standing = judge_tokens_per_s.standing

CHECKS = {
    "lab8.same": Check(3, judge_weights_memory_links.judge_same),
    "lab8.cap": Check(3, judge_weights_memory_links.judge_cap, ground=Ground.CLAIMED),
    "lab8.links": Check(3, judge_weights_memory_links.judge_links, ground=Ground.CLAIMED),
    "lab8.tokens": Check(6, judge_tokens_per_s.judge, timed=True, ground=Ground.SEEN),
}
