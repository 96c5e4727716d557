"""Errors of ours, by which an engine may refuse a program or a part of it."""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager

REFUSALS = (RuntimeError, ValueError, TypeError)


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


def check_blame(error: BaseException, may_say: set[str]) -> None:
    """Raise AssertionError if an error of ours says something that the program did not do."""
    assert any(words in str(error) for words in may_say), f"refused for what the program does not do: {error}"
