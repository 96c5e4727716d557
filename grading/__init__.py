"""Grade labs in processes that a submission can't reach.

    notebook ── check("lab2.gradients", TokenDDP)     hands in an answer (pickled, never opened here)
        └─ referee: judge(lab, answers) -> verdicts    draws inputs, reads clocks, knows the budgets
              ├─ the submission's ranks   ── box ── host ── launch ── ranks running the student's code
              ├─ the reference's ranks    ── box ── host ── launch ── ranks running ours, in the same minute
              └─ our answers              what is the best plan, what a usual mistake would give
    judge(submission) ── box ── papermill runs the notebook; then the referee judges what it handed in
    shardlab grade: queue ── worker ── judge;  nbgrader autograde: executor ── the same judge, or what is stored

Packages, each of which imports only those above it:

    boxes/          processes that run a submission's code, and the box around them
    judge/          turns answers and a reference into one verdict for each check, without nbgrader
    checks/         one folder a lab: what the ranks do, and how it is judged
    references/     our own answers, which judges ask for by name; no submission runs beside them
    student/        `check`, which students call in their notebooks
    gradebook/      from submitted folders to nbgrader's gradebook
    reports/        tables, pages and files for the instructor
    samples/, attacks/, bench/      right, wrong and hostile submissions, and benchmarks of grading them
    student_kit/    the folder that students get, with a record in place of our answers
    instructor_commands, demo       what an instructor types
"""

import sys
from typing import Any

# Importing nbformat makes jsonschema compile a grammar of addresses: 2.5 seconds for what no notebook needs.
sys.modules.setdefault("rfc3987_syntax", None)


def check(name: str, answer: Any, tier=None) -> None:
    """Judge `answer` for the check called `name`, on `tier` (None: what this machine has), and show the verdict.

    Raises AssertionError if the answer does not get full points, so that nbgrader's Validate shows it too. Raises
    TypeError if the answer can't be run, or can't be sent to other processes.
    """
    from grading.student.check import hand_in  # not at the top: a host that only runs papermill needs no torch

    hand_in(name, answer, tier)


__all__ = ["check"]
