"""The checks of lab 11, in the order of the notebook."""

from grading.checks.lab11_slow_link import judge_choice, judge_link, judge_weights, on_ranks
from grading.judge.session import Check, Ground, Session

DRILLS = on_ranks.__name__
GIVEN_CELLS = ("program",)  # the answer has the lines of its optimizer step


def pace(s: Session) -> None:
    runs = judge_weights.outer_runs(s.seed)["4x1"]  # as many as a drill of the checks has
    s.order_reference("train", runs=runs, **judge_weights.words_of("4x1"))


CHECKS = {
    "lab11.outer": Check(4, judge_weights.judge_outer),
    "lab11.late": Check(3, judge_weights.judge_late),
    "lab11.missed": Check(4, judge_weights.judge_missed),
    "lab11.link": Check(3, judge_link.judge, ground=Ground.CLAIMED),
    "lab11.choice": Check(4, judge_choice.judge),
}
