"""Implement `check("lab2.gradients", TokenDDP)`, which a student calls at any time, and which hands in for grading.

While a notebook is graded, the answer is only written to a file; the referee judges it later, elsewhere. In the
student's own notebook the same referee judges it at once and prints its verdict.
"""

import atexit
import os
from functools import cache
from pathlib import Path
from typing import Any

from grading.boxes.answers_folder_and_output_limits import ANSWERS
from grading.judge.find_lab import lab_module
from grading.judge.judge_answers import Referee
from shardlab.launch.notebook_tracebacks import name_cells, without_frames
from shardlab.launch.pickling import dumps
from shardlab.launch.progress_line import waiting
from shardlab.tier import Tier

MOST_BYTES = 3 << 20  # of a pickled answer: all answers of a lab must fit into a box's reply


class CheckFailed(AssertionError):
    """A failed check. A notebook shows only its message: a traceback through our code would distract."""

    def _render_traceback_(self) -> list[str]:  # IPython calls it
        return [f"{type(self).__name__}: {self}"]


def hand_in(name: str, answer: Any, tier: Tier | str | None = None) -> None:
    """Judge an answer or hand it in; see `grading.check`."""
    folder = os.environ.get(ANSWERS)  # while it is graded, in a box where no judge is
    if not folder and name not in (checks := lab_module(name).CHECKS):
        raise ValueError(f"no check {name!r}; this lab has {', '.join(checks)}")
    pickled = _pickle(name, _runnable(name, answer))
    if folder:
        Path(folder, name).write_bytes(pickled)
        print(f"{name}: handed in")
        return
    with waiting(f"judging {name}"):
        referee = _referee(name.split(".")[0], tier.name if isinstance(tier, Tier) else tier)
        try:
            verdict = referee.judge({name: pickled}, only=name)[0]
        except KeyboardInterrupt as error:
            raise without_frames(error, f"{name} was interrupted; nothing is lost")  # noqa: B904  it is the same error
    print(name_cells(verdict.text()))
    if not (verdict.passed or verdict.inconclusive):
        raise CheckFailed(name_cells(f"{name}: {verdict.cause}"))


@cache
def _referee(lab: str, tier: str | None) -> Referee:
    """Return the one referee of the notebook, so that only the first check waits for processes to start."""
    referee = Referee(lab, tier, same_player=True)
    atexit.register(referee.close)
    return referee


def _runnable(name: str, answer: Any) -> Any:
    """Return an answer that can be run: a function, a class, or a tuple of these. Else raise TypeError."""
    parts = answer if isinstance(answer, tuple) and answer else (answer,)
    if not all(map(callable, parts)):
        raise TypeError(
            f"{name}: the answer is the function or class itself, and this is {answer!r:.60}. "
            "Was its name given to something else, or was it called? Run the cell that defines it once more"
        )
    return answer


def _pickle(name: str, answer: Any) -> bytes:
    try:
        pickled = dumps(answer)
    except Exception as error:
        raise TypeError(
            f"{name}: your answer can't travel to the ranks ({error}); keep open files, locks, process groups "
            "and running threads out of it and out of the globals that it uses"
        ) from error
    if len(pickled) > MOST_BYTES:
        raise TypeError(
            f"{name}: your answer takes {len(pickled) >> 20} MiB with the globals that it uses, and may take "
            f"{MOST_BYTES >> 20}: keep models and data out of them"
        )
    return pickled
