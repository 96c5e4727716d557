"""The referee: decides the points of a lab in processes that a submission does not reach.

    notebook ── check("lab2.gradients", TokenDDP)     hands in an answer (pickled, never opened here)
        └─ referee: judge(lab, answers) -> verdicts    draws inputs, reads clocks, knows the budgets
              ├─ crew of the submission   ── host ── launch ── ranks running the student's code
              └─ crew of the reference    ── host ── launch ── ranks running ours, in the same minute
    nbgrader autograde: executor (papermill) runs the notebook, the referee judges, the gradebook gets the points

Read `verdict`, `checks/` (one lab a pair of files: what the ranks do, how it is judged), `host` and `crew` (the wall
between referee and submission), `referee`, `check` (what students call), `executor` (inside nbgrader), `classroom`.
"""

from grading.check import check

__all__ = ["check"]
