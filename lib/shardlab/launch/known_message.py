"""Point from an error of the ranks to its entry in the index of messages, if it has one."""

from typing import TypeVar

E = TypeVar("E", bound=BaseException)


def explained(error: E) -> E:
    """Return the error with a note on where its first cause is explained, if the index knows it. Takes some 0.1 s."""
    try:  # the box of a submission has no index
        from shardwhy.first_cause import CONSEQUENCE, WARNING, diagnose
        from shardwhy.index import load
        from shardwhy.logs import Log
    except ModuleNotFoundError:
        return error
    cause = diagnose([Log(str(error).encode())], load().values()).cause
    if cause and cause.entry and cause.kind not in (WARNING, CONSEQUENCE):
        entry = cause.entry
        where = f'course/messages.md#{entry.id} and in {entry.lesson}, "{entry.section}"'
        error.add_note(f"Explained in {where}. See also: shardlab why")
    return error
