"""The words around a line of a log: the frames of its traceback and the lines near it, where signs of causes are."""

from itertools import islice, takewhile

from shardwhy.logs import Line

BEFORE, AFTER = 40, 12  # lines of this rank
MOST = 400  # lines that are looked at, those of other ranks counted


def around(line: Line, every_rank: bool = False) -> str:
    """Return the lines before and after, with the line itself, in the order of the log.

    Lines of other ranks are left out, if not every rank is asked for: a rank that waits waits for the others.
    """
    above = [x.text for x in islice(_near(line.log.before(line), line, every_rank), BEFORE)]
    below = takewhile(lambda x: "Traceback (most recent call last)" not in x.text, line.log.after(line))
    after = [x.text for x in islice(_near(below, line, every_rank), AFTER)]
    return "\n".join([*reversed(above), line.text, *after])


def _near(lines, line: Line, every_rank: bool):
    return (x for x in islice(lines, MOST) if every_rank or line.rank is None or x.rank in (line.rank, None))
