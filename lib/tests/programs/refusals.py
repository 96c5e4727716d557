"""Errors of ours, by which an engine may refuse a program or a part of it."""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager

REFUSALS = (RuntimeError, ValueError, TypeError)

# What an engine may say of a whole program, and the facts of which the program must have one: see Run.facts
MAY_SAY = {
    "gave no gradient to": {"unused", "frozen since"},
    "was frozen when": {"thawed"},
    "is sparse: use layers with": {"sparse"},
    "in one flat parameter they would be lost": {"marked"},
}


def ours(error: BaseException) -> bool:
    """Return whether a `raise` of ours raised the error: torch's C++ raises its own in lines of ours, too."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return "/shardlab/" in frame.filename and frame.line.startswith("raise")


@contextmanager
def refused_by_name() -> Iterator[None]:
    """Suppress the errors by which an engine refuses what is done inside. Another error is a finding."""
    try:
        yield
    except REFUSALS as error:
        if not ours(error):
            raise


def check_blame(error: BaseException, facts: set[str]) -> None:
    """Raise AssertionError if the program does not have what an error of ours blames."""
    allowed = [facts & needed for words, needed in MAY_SAY.items() if words in str(error)]
    assert any(allowed), f"refused for what the program does not do: {error}"
