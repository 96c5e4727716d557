"""Grade labs in processes that a submission does not reach.

    notebook ── check("lab2.gradients", TokenDDP)     hands in an answer (pickled, never opened here)
        └─ referee: judge(lab, answers) -> verdicts    draws inputs, reads clocks, knows the budgets
              ├─ the submission's ranks   ── box ── host ── launch ── ranks running the student's code
              └─ the reference's ranks    ── box ── host ── launch ── ranks running ours, in the same minute
    nbgrader autograde: executor ── box ── papermill runs the notebook; the referee's verdicts go to the gradebook

Rooms, each of which imports only those above it:

    boxes/          processes that run a submission's code, and the wall around them
    judge/          answers and a reference in, one verdict for each check out; it knows no nbgrader
    checks/         one folder a lab: what the ranks do, and how it is judged
    student/        `check`, which students call in their notebooks
    gradebook/      from submitted folders to nbgrader's gradebook
    reports/        tables, pages and files for the instructor
    samples/, attacks/, bench/      right, wrong and hostile submissions, and what grading them takes
    commands, demo  what the instructor calls
"""

import sys
from typing import Any

# A grammar of addresses that nbformat's jsonschema would compile at import: 2.5 seconds for what no notebook needs.
sys.modules.setdefault("rfc3987_syntax", None)


def check(name: str, answer: Any, tier=None) -> None:
    """Judge `answer` for the check called `name`, on `tier` (None: what this machine has), and show the verdict.

    Raises AssertionError if it does not get full points, so that nbgrader's Validate shows it too; TypeError if it is
    nothing that could be run, or can't travel to other processes.
    """
    from grading.student.hand_in import hand_in  # not above: a host that only runs papermill need not wait for torch

    hand_in(name, answer, tier)


__all__ = ["check"]
