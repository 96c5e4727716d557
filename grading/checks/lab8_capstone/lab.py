"""The checks of lab 8, in the order of the notebook."""

from grading.checks.lab8_capstone import on_ranks, step_checks, tokens
from grading.judge.submission_run import Check

DRILLS = on_ranks.__name__
pace = step_checks.pace
standing = tokens.standing
HIDDEN = ("recompute_every", "reduce_once", "shards")

CHECKS = {
    "lab8.same": Check(3, step_checks.judge_same),
    "lab8.cap": Check(3, step_checks.judge_cap),
    "lab8.links": Check(3, step_checks.judge_links),
    "lab8.tokens": Check(6, tokens.judge, timed=True),
}
