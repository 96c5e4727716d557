"""The referee: decides the points of a lab in processes that a submission does not reach.

    notebook ── check("lab2.gradients", TokenDDP)     hands in an answer (pickled, never opened here)
        └─ referee: judge(lab, answers) -> verdicts    draws inputs, reads clocks, knows the budgets
              ├─ crew of the submission   ── box ── host ── launch ── ranks running the student's code
              └─ crew of the reference    ── box ── host ── launch ── ranks running ours, in the same minute
    nbgrader autograde: executor ── box ── papermill runs the notebook; the referee's verdicts go to the gradebook

Read `verdict`, `checks/` (one lab a pair of files: what the ranks do, how it is judged), `sandbox/` (the wall between
referee and submission), `crew_host` and `crew`, `notebook_host` and `notebook` (either side of it), `referee`,
`hand_in` (what students call), `executor` (inside nbgrader), `classroom`.
"""

import sys
from typing import Any

# A grammar of addresses that nbformat's jsonschema would compile at import: 2.5 seconds for what no notebook needs.
sys.modules.setdefault("rfc3987_syntax", None)

ANSWERS = "SHARDLAB_ANSWERS"  # environment: the folder where answers are written down while a notebook is graded
MOST_OUTPUTS = 200  # of a cell, and a word on how it ended: each is checked by itself


def check(name: str, answer: Any, tier=None) -> None:
    """Judge `answer` for the check called `name`, on `tier` (None: what this machine has), and show the verdict.

    Raises AssertionError if it does not get full points, so that nbgrader's Validate shows it too; TypeError if it is
    nothing that could be run, or can't travel to other processes.
    """
    from grading.hand_in import hand_in  # not above: a host that only runs papermill need not wait for torch

    hand_in(name, answer, tier)


__all__ = ["ANSWERS", "check"]
