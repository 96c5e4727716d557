"""`check("lab2.gradients", TokenDDP)`: what a student calls at any time, and what hands an answer in for grading.

While grading, the answer is only written down; the referee judges it later, elsewhere. In the student's own notebook
the same referee judges it right here and says what it found.
"""

import atexit
import os
from functools import cache
from pathlib import Path
from typing import Any

from grading import ANSWERS
from grading.checks import lab_module
from grading.referee import Referee
from shardlab.launch.travel import dumps
from shardlab.tier import Tier


def hand_in(name: str, answer: Any, tier: Tier | str | None = None) -> None:
    """See `grading.check`."""
    checks = lab_module(name).CHECKS
    if name not in checks:
        raise ValueError(f"no check {name!r}; this lab has {', '.join(checks)}")
    pickled = _pickle(name, _runnable(name, answer))
    if folder := os.environ.get(ANSWERS):
        Path(folder, name).write_bytes(pickled)
        print(f"{name}: handed in")
        return
    referee = _referee(name.split(".")[0], tier.name if isinstance(tier, Tier) else tier)
    verdict = referee.judge({name: pickled}, only=name)[0]
    print(verdict.text())
    assert verdict.passed or verdict.inconclusive, f"{name}: {verdict.cause}"


@cache
def _referee(lab: str, tier: str | None) -> Referee:
    """One for the whole notebook, so that only the first check waits for processes to start."""
    referee = Referee(lab, tier, same_player=True)
    atexit.register(referee.close)
    return referee


def _runnable(name: str, answer: Any) -> Any:
    """Answers are functions or classes, or several in a tuple: they are run, on inputs that are drawn then."""
    parts = answer if isinstance(answer, tuple) and answer else (answer,)
    if not all(map(callable, parts)):
        raise TypeError(
            f"{name}: the answer is the function or class itself, and this is {answer!r:.60}. "
            "Was its name given to something else, or was it called? Run the cell that defines it once more"
        )
    return answer


def _pickle(name: str, answer: Any) -> bytes:
    try:
        return dumps(answer)
    except Exception as error:
        raise TypeError(
            f"{name}: your answer can't travel to the ranks ({error}); keep open files, locks, process groups "
            "and running threads out of it and out of the globals that it uses"
        ) from error
