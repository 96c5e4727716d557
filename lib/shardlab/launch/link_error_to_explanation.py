"""Point from an error of the ranks to its entry in the index of messages, if it has one."""

from functools import cache
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from shardwhy.index import Entry

E = TypeVar("E", bound=BaseException)


def explained(error: E) -> E:
    """Return the error with a note on where its first cause is explained, if the index knows it."""
    try:  # the box of a submission has no index
        from shardwhy.first_cause import CONSEQUENCE, WARNING, diagnose
        from shardwhy.logs import Log

        cause = diagnose([Log(str(error).encode())], _index()).cause
    except ModuleNotFoundError:
        return error
    if cause and cause.entry and cause.kind not in (WARNING, CONSEQUENCE):
        entry = cause.entry
        where = f'course/messages.md#{entry.id} and in {entry.lesson}, "{entry.section}"'
        error.add_note(f"Explained in {where}. See also: shardlab why")
    return error


@cache
def _index() -> "tuple[Entry, ...]":
    """Return the entries, read once (0.1 s), without families: a student's KeyError needs no note that it is one."""
    from shardwhy.index import load

    return tuple(entry for entry in load().values() if not entry.family)
