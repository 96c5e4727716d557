"""`check("lab2.gradients", TokenDDP)`: what a student calls at any time, and what hands an answer in for grading.

While grading, the answer is only written down; the referee judges it later, elsewhere. In the student's own notebook
the same referee judges it right here and says what it found.
"""

import atexit
import os
from functools import cache
from pathlib import Path
from typing import Any

from grading.checks import lab_module
from grading.referee import Referee
from shardlab.launch.travel import dumps

ANSWERS = "SHARDLAB_ANSWERS"  # environment: the folder where answers are written down; set by the grading executor


def check(name: str, answer: Any) -> None:
    """Judge `answer` for the check called `name` and show the verdict.

    Raises AssertionError if it does not get full points, so that nbgrader's Validate shows it too.
    """
    checks = lab_module(name).CHECKS
    if name not in checks:
        raise ValueError(f"no check {name!r}; this lab has {', '.join(checks)}")
    pickled = _pickle(name, answer)
    if folder := os.environ.get(ANSWERS):
        Path(folder, name).write_bytes(pickled)
        print(f"{name}: handed in")
        return
    verdict = _referee(name.split(".")[0]).judge({name: pickled}, only=name)[0]
    print(verdict.text())
    assert verdict.passed or verdict.inconclusive, f"{name}: {verdict.cause}"


@cache
def _referee(lab: str) -> Referee:
    """One for the whole notebook, so that only the first check waits for processes to start."""
    referee = Referee(lab, same_player=True)
    atexit.register(referee.close)
    return referee


def _pickle(name: str, answer: Any) -> bytes:
    try:
        return dumps(answer)
    except Exception as error:
        raise TypeError(
            f"{name}: your answer can't travel to the ranks ({error}); keep open files, locks, process groups "
            "and running threads out of it and out of the globals that it uses"
        ) from error
