"""Problems in words: what an instructor is told when a submission has no grade, and what to ask its author for."""

import re

from nbgrader.api import MissingEntry

from grading.gradebook.inspect_files import SubmissionError
from grading.judge.judge_submission import LACKS_CELLS

SPOILT = "Cells are not what was released, in number or in form: ask for the notebook with its cells as they were."
_OF_SPOILT_CELLS = ("Inconsistent checksums", "SchemaTooOldError", "SchemaTooNewError", "metadata may be corrupted")


def reason_in(log: str) -> str:
    """Return the cause from nbgrader's log: the text of the last exception that is not nbgrader's own summary."""
    parts = re.split(r"^ *(?:[\w.]+\.)?(\w+(?:Error|Exception)): ", log, flags=re.M)
    named = [f"{n}: {text}" for n, text in zip(parts[1::2], parts[2::2], strict=True) if n != "NbGraderException"]
    last = re.split(r"\n *(?:Traceback|\[ERROR\]|The above exception|During handling)", named[-1])[0] if named else ""
    lines = [line.strip() for line in log.splitlines() if line.strip()] or ["nbgrader gave no reason"]
    return with_advice(last.strip()[-2000:] or lines[-1])


def with_advice(reason: str) -> str:
    """Add what to ask the student for, if that is known."""
    return f"{reason}\n{SPOILT}" if any(words in reason for words in (*_OF_SPOILT_CELLS, LACKS_CELLS)) else reason


def in_words(error: Exception) -> str:
    """Return an error as a problem to tell the instructor."""
    if isinstance(error, MissingEntry):
        return f"{error}: if the lab was not released here, run `shardlab release`, and grade again"
    return str(error) if isinstance(error, SubmissionError) else with_advice(f"{type(error).__name__}: {error}")


def shown(student: str) -> str:
    """Return the student's name in a form that a terminal and a page can show: it is the name of a folder."""
    return student if student.isprintable() else ascii(student)
