"""The words around a line of a log: the frames of its traceback and the lines near it, where signs of causes are.

Two things that a pattern cannot see in them are added in words: the last frame of the traceback, and that all ranks
wait in one collective.
"""

import re
from itertools import islice, takewhile

from shardwhy.logs import Line, Log, rank_of

BEFORE, AFTER = 40, 12  # lines of this rank
MOST = 400  # lines that are looked at, those of other ranks counted
FRAME = re.compile(r'\s+File "(.*)", line \d+, in (.*)')
WAITS = "Watchdog caught collective operation timeout"
CALL = re.compile(WAITS + r": WorkNCCL\((\w+=\d+, OpType=\w+(?:, NumelIn=\d+)?)")


def around(line: Line, every_rank: bool = False) -> str:
    """Return the lines before and after, with the line itself, in the order of the log.

    Lines of other ranks are left out, if not every rank is asked for: a rank that waits waits for the others.
    """
    above = [x.text for x in islice(_near(line.log.before(line), line, every_rank), BEFORE)]
    below = takewhile(lambda x: "Traceback (most recent call last)" not in x.text, line.log.after(line))
    after = [x.text for x in islice(_near(below, line, every_rank), AFTER)]
    return "\n".join([*reversed(above), line.text, *after, *_last_frame(above)])


def same_collective(logs: list[Log]) -> str:
    """Return a sentence if two or more ranks report a timeout, and all of them in the same collective."""
    lines = (line for log in logs for line in log.lines_with([WAITS]))
    calls = {rank_of(line): found[1] for line in lines if (found := CALL.search(line.text))}
    return "all ranks wait in the same collective" if len(calls) > 1 and len(set(calls.values())) == 1 else ""


def _last_frame(above: list[str]) -> list[str]:
    """Return `last frame: FILE in FUNCTION: CODE` from the lines above an error, the nearest first."""
    inside = list(takewhile(lambda text: text[:1].isspace() or not text, above))
    for number, text in enumerate(inside):
        if frame := FRAME.match(text):
            code = next((x.strip() for x in reversed(inside[:number]) if x.strip()), "")
            return [f"last frame: {frame[1]} in {frame[2]}: {code}"]
    return []


def _near(lines, line: Line, every_rank: bool):
    return (x for x in islice(lines, MOST) if every_rank or line.rank is None or x.rank in (line.rank, None))
