"""Problems in words: what an instructor is told when a submission has no grade, and what to ask its author for."""

import re

from nbgrader.api import MissingEntry

from grading.gradebook.normalise_notebook import SubmissionError

LOCKED = "another program holds grading/gradebook.db: close it (formgrader, a viewer of databases), and try again"
FULL = "the disk is full: make room, and try again; what was graded before stays"
_OF_THE_MACHINE = {  # what libraries say -> what to do
    "database is locked": LOCKED,
    "readonly database": "grading/gradebook.db can't be written: make it yours, or grade as its owner",
    "disk is full": FULL,
    "No space left on device": FULL,
    "Cannot add or remove cells": "submissions were graded with the cells that the lab had then: take the new cell out "
    "of solutions/, or begin a new gradebook (move grading/gradebook.db away, release, and grade again)",
}


class CourseError(RuntimeError):
    """Something that the instructor has to do before anything can be graded; the message says what."""


def reason_in(log: str) -> str:
    """Return the cause from nbgrader's log: the text of the last exception that is not nbgrader's own summary."""
    parts = re.split(r"^ *(?:[\w.]+\.)?(\w+(?:Error|Exception)): ", log, flags=re.M)
    named = [f"{n}: {text}" for n, text in zip(parts[1::2], parts[2::2], strict=True) if n != "NbGraderException"]
    last = re.split(r"\n *(?:Traceback|\[ERROR\]|The above exception|During handling)", named[-1])[0] if named else ""
    lines = [line.strip() for line in log.splitlines() if line.strip()] or ["nbgrader gave no reason"]
    return with_advice(last.strip()[-2000:] or lines[-1])


def with_advice(reason: str) -> str:
    """Say what to do about the machine, if that is the reason."""
    return next((advice for words, advice in _OF_THE_MACHINE.items() if words in reason), reason)


def in_words(error: Exception) -> str:
    """Return an error as a problem to tell the instructor."""
    if isinstance(error, MissingEntry):
        return f"{error}: if the lab was not released here, run `shardlab release`, and grade again"
    if isinstance(error, SubmissionError | CourseError):
        return str(error)
    return with_advice(str(error)) if type(error) is RuntimeError else with_advice(f"{type(error).__name__}: {error}")


def shown(student: str) -> str:
    """Return the student's name in a form that a terminal and a page can show: it is the name of a folder."""
    return student if student.isprintable() else ascii(student)


def visible(text: str) -> str:
    """Return text of a student's that a terminal shows and does not obey: its control characters as \\x1b, \\u202e."""
    return "".join(c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1] for c in text)
