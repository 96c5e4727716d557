"""The words around a line of a log: the frames of its traceback and the lines near it, where signs of causes are.

Two things that a pattern cannot see in them are added in words: the last frame of the traceback, and that all ranks
wait in one collective. `raised_in` says for the reader where an error was raised, and which line of the program's own
code led there.
"""

import re
from collections.abc import Iterator
from itertools import islice, takewhile

from shardwhy.logs import Line, Log, rank_of

BEFORE, AFTER = 40, 12  # lines of this rank
MOST = 400  # lines that are looked at, those of other ranks counted
FRAME = re.compile(r'\s+File "(.*)", line \d+, in (.*)')
PLACE = re.compile(r'\s+File "(?P<file>[^"]+)", line (?P<line>\d+)|[|│]\s+(?P<box>/?\S+\.py):(?P<at>\d+) in ')
LIBRARY = re.compile(r"(?:site|dist)-packages|[/\\]lib[/\\]python\d|^<|[/\\]bin[/\\]")
PACKAGE = re.compile(r"(?:site|dist)-packages[/\\](\w+)")
PYTORCH = ("torch", "torchvision", "ray", "triton")
HEADS = ("Traceback (most recent call last)", "During handling of the above", "The above exception was the direct")
LONGEST_TRACEBACK = 300  # lines
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


def raised_in(line: Line) -> str:
    """Return where an error was raised, and the last line of the program's own code above it; empty without frames."""
    frames = list(_frames(line))
    if not frames:
        return ""
    own = next((frame for frame in frames if not LIBRARY.search(frame[0])), None)
    (file, number, code), last = frames[0], frames[0] is own
    raised = f"at {_short(file)}:{number}" + (f": {code}" if last and code else "")
    if last or own is None:
        return raised
    return f"{raised}; the program's own code: {_short(own[0])}:{own[1]}" + (f": {own[2]}" if own[2] else "")


def caller_of(line: Line) -> str:
    """Return the package nearest to the error, PyTorch and Python left out; empty if the program itself is nearer."""
    for file, _, _ in _frames(line):
        inside = PACKAGE.search(file)
        if not LIBRARY.search(file):
            return ""
        if inside and inside[1] not in PYTORCH:
            return inside[1]
    return ""


def _frames(line: Line) -> Iterator[tuple[str, str, str]]:
    """Yield file, line and code of each frame of the traceback that ends with this line, the last one first."""
    code = ""
    for above in islice(_near(line.log.before(line), line, False), LONGEST_TRACEBACK):
        if any(head in above.text for head in HEADS):
            return
        if found := PLACE.match(above.text):
            yield found["file"] or found["box"], found["line"] or found["at"], code
            code = ""
        elif above.text.strip() and not above.text[:1].isspace() and above.text[0] not in "|│╭╰":
            return
        elif (said := above.text.strip()).strip("^~ "):
            code = said if above.text[:1].isspace() else code


def _short(file: str) -> str:
    """Return a path from its package on, or its last two parts."""
    inside = re.split(r"(?:site|dist)-packages[/\\]", file)
    return inside[-1] if len(inside) > 1 else "/".join(re.split(r"[/\\]", file)[-2:])


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
