"""What people have, as lines with rank and time: a pasted message, the log of one rank or of all, files, a folder.

Logs are megabytes, so a line is decoded only if a search over the bytes has found it (`Log.lines_with`). Colours are
removed, and a progress bar's carriage return ends a line.
"""

import re
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate, islice
from pathlib import Path

ANSI = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\^_])")
PREFIX = re.compile(
    r"""(?:
      \[(?:rank|default|Rank|RANK)[ :_]?(?P<torch>\d+)\][:|]?   # [rank3]:  [default3]:  [rank 3]
    | \[\d+,(?P<mpi>\d+)\]<std\w+>:                              # mpirun --tag-output
    | (?P<slurm>\d+):(?=[ \[]|$)                                # srun --label
    | \((?:\w+[ ])?pid=\d+[^)]*\)                               # Ray
    | (?:[\w.-]+:|\[\d+\])(?=[ ]\[(?:rank|default)\d)           # DeepSpeed's pdsh: the name of a node
    | \d{4}-\d\d-\d\d(?:T[\d:.]+Z?(?=[ ])|[ ][\d:.,]+(?=[ ]\[rank))  # Kubernetes, and other collectors of logs
    | >(?=[ ])                                                 # quoted
    | [^\[\]]{1,80}[ ](?=\[rank\d+\]:)                          # whatever a program that collects logs writes before
    | \[(?:every[ ]rank|ranks[ ][\d,-]+)\]                      # ours, where ranks say the same
    )[ ]?""",
    re.VERBOSE,
)
IN_LINE = re.compile(
    r"\[Rank:? ?(\d+)\]|\brank (\d+) of \d+\b|\b(?:global_rank|GLOBAL_RANK)\W{1,3}(\d+)|\blocal_rank: ?(\d+)"
    r"|\[rank(\d+)\]|^ *rank +: (\d+)|^-- Process (\d+) terminated|\btask (\d+): |Error: \[(\d+)\]: "
)
FILE_RANK = re.compile(r"(?:rank|worker|local_rank)[-_.]?(\d+)", re.IGNORECASE)
TIME = re.compile(
    r"\b[EWIF](?P<m1>[01]?\d)(?P<d1>[0-3]\d) (?P<t1>\d\d:\d\d:\d\d(?:\.\d+)?)"
    r"|\b\d{4}[-/](?P<m2>\d\d)[-/](?P<d2>\d\d)[T _](?P<t2>\d\d:\d\d:\d\d(?:[.,]\d+)?)"
    r"|\b(?P<m3>\d\d)/(?P<d3>\d\d)/\d{4} (?P<t3>\d\d:\d\d:\d\d)"
)
NEWLINE = ord("\n")
MOST_COLOURS = 50  # that are removed one after the other
DIGITS = b"0123456789"
_NO_DIGITS = dict.fromkeys(DIGITS)
MOST_ALIKE = 5000  # there may be as many ranks
LOOK_BACK = 40  # lines in which a line without a time looks for the last time of its rank


class CannotRead(ValueError):
    """Says which input cannot be read, and why."""


@dataclass(frozen=True)
class Line:
    """One line, without colours and without the prefix that names its rank."""

    log: "Log"
    start: int  # offset in the log's data
    end: int
    number: int
    rank: int | None
    text: str


class Log:
    """The bytes of one file or of one paste."""

    def __init__(self, data: bytes, name: str = "", rank: int | None = None) -> None:
        self.data = _without_colours(data)
        self.name, self.rank = name, rank
        self._read_lines()

    def lines_with(self, texts: Iterable[str]) -> Iterator[Line]:
        """Yield each line that contains one of the texts, in order.

        Of lines that differ only in digits, yield at most MOST_ALIKE. A log has millions of lines, but few shapes
        of lines, and most texts are in none of these.
        """
        wanted: dict[int, list[bytes]] = {}
        for text in map(str.encode, texts):
            for shape in self._shapes_with(text.translate(None, DIGITS)):
                wanted.setdefault(shape, []).append(text)
        alike: Counter[int] = Counter()
        counted, number = 0, 1
        for index in [i for i, shape in enumerate(self._shape_of) if shape in wanted]:
            start, end, shape = self._starts[index], self._starts[index + 1], self._shape_of[index]
            if alike[shape] < MOST_ALIKE and any(self.data.find(text, start, end) >= 0 for text in wanted[shape]):
                alike[shape] += 1
                number, counted = number + self.data.count(b"\n", counted, start), start
                yield self._line(start, end, number)

    def _shapes_with(self, text: bytes) -> Iterator[int]:
        """Yield the number of each shape that has the text. To look up its whole words is faster than a search."""
        if not self._words.issuperset((b"x" + text + b"x").split()[1:-1]):
            return
        joined, starts = self._shapes
        at = joined.find(text)
        while at >= 0:
            yield (number := bisect_right(starts, at) - 1)
            at = joined.find(text, starts[number + 1])

    def _read_lines(self) -> None:
        """Find where each line begins, and its shape: the line without digits."""
        lines = self.data.splitlines(keepends=True)
        self._starts = array("Q", accumulate(map(len, lines), initial=0))
        shapes: dict[bytes, int] = {}
        self._shape_of = array("L", (shapes.setdefault(x.translate(None, DIGITS), len(shapes)) for x in lines))
        self._shapes = b"".join(shapes), array("Q", accumulate(map(len, shapes), initial=0))
        self._words = set(self._shapes[0].split())

    def after(self, line: Line) -> Iterator[Line]:
        """Yield the lines that follow."""
        number = line.number
        for index in range(bisect_right(self._starts, line.start), len(self._shape_of)):
            start = self._starts[index]
            number += self.data[start - 1] == NEWLINE
            yield self._line(start, self._starts[index + 1], number)

    def before(self, line: Line) -> Iterator[Line]:
        """Yield the lines above, the nearest first."""
        number = line.number
        for index in range(bisect_right(self._starts, line.start) - 2, -1, -1):
            end = self._starts[index + 1]
            number -= self.data[end - 1] == NEWLINE
            yield self._line(self._starts[index], end, number)

    def ranks(self) -> set[int]:
        """Return every rank that a line names in its prefix."""
        found = re.findall(rb"(?:^|\n|\r)\[(?:rank|default|rank )(\d+)\]", self.data)
        return {int(number) for number in set(found)} | ({self.rank} if self.rank is not None else set())

    def _line(self, start: int, end: int, number: int) -> Line:
        text = self.data[start : min(end, start + 20_000)].decode("utf-8", "replace").rstrip()
        rank, prefixed = None, False
        while prefix := PREFIX.match(text):
            named = prefix["torch"] or prefix["mpi"]
            if named or (prefix["slurm"] and not prefixed):
                rank, prefixed = int(named or prefix["slurm"]), True
            text = text[prefix.end() :]
        if rank is None and (inside := IN_LINE.search(text)):
            rank = int(next(filter(None, inside.groups())))
        return Line(self, start, end, number, self.rank if rank is None else rank, text)


def _without_colours(data: bytes) -> bytes:
    """Return the data without escape sequences. To replace each kind of them is faster than a pattern for all."""
    for _ in range(MOST_COLOURS):
        if not (found := ANSI.search(data)):
            return data
        data = data.replace(found[0], b"")
    return ANSI.sub(b"", data)


def time_of(line: Line) -> float | None:
    """Return seconds since the beginning of the year (a year of twelve months of 31 days) at which a line was written.

    A line without a time, such as one of a traceback, was written after the last line of its rank that has one.
    """
    for number, above in enumerate([line, *islice(line.log.before(line), LOOK_BACK)]):
        if (not number or above.rank == line.rank) and (found := TIME.search(_raw(above)[:200])):
            month, day, clock = (found[f"{part}{form}"] for form in "123" for part in "mdt" if found[f"t{form}"])
            hours, minutes, seconds = clock.replace(",", ".").split(":")
            return ((int(month) * 31 + int(day)) * 24 + int(hours)) * 3600 + int(minutes) * 60 + float(seconds)
    return None


def rank_of(line: Line) -> int | None:
    """Return a line's rank: it may be named a few lines above, as in torchrun's table of failures."""
    if line.rank is not None:
        return line.rank
    for above in islice(line.log.before(line), 3):
        if re.match(r" *rank +: |-- Process \d+ terminated", above.text):
            return above.rank
    return None


def ranks_in_words(ranks: Iterable[int]) -> str:
    numbers = sorted(ranks)
    shown = ", ".join(map(str, numbers[:8])) + (", ..." if len(numbers) > 8 else "")
    return f"rank{'s' * (len(numbers) > 1)} {shown}"


def files_of(names: list[str]) -> list[tuple[Path, str]]:
    """Return each file of these files and folders, and the name to show; raises CannotRead."""
    found = []
    for path in map(Path, names):
        if path.is_dir():
            inside = [(file, str(file.relative_to(path))) for file in sorted(path.rglob("*")) if file.is_file()]
            if not inside:
                raise CannotRead(f"{path}: the folder is empty")
            found += inside
        elif path.exists():
            found.append((path, path.name))
        else:
            raise CannotRead(f"{path}: no such file or folder")
    return found


def read(files: list[tuple[Path, str]]) -> list[Log]:
    """Read files as logs, those that are no text left out; raises CannotRead if there is no text at all."""
    try:
        logs = [log for file, name in files if (log := _log(file, name))]
    except OSError as error:
        raise CannotRead(f"{error.filename}: {(error.strerror or str(error)).lower()}") from None
    if files and not logs:
        raise CannotRead(f"{files[0][1]} is not a text file" + " (nor are the others)" * (len(files) > 1))
    return logs


def _log(file: Path, name: str) -> Log | None:
    """Return the file, or None if it is not text. Its rank is in its name, or in torchrun's folder attempt_0/RANK."""
    with file.open("rb") as stream:
        if b"\0" in stream.read(8192):
            return None
        stream.seek(0)
        data = stream.read()
    if file.parent.parent.name.startswith("attempt_") and file.parent.name.isdigit():
        return Log(data, name, int(file.parent.name))
    named = FILE_RANK.search(file.stem)
    return Log(data, name, int(named[1]) if named else None)


def _raw(line: Line) -> str:
    return line.log.data[line.start : min(line.end, line.start + 300)].decode("utf-8", "replace")


def without_digits(text: str) -> str:
    """Return the text without its ASCII digits: what lines of one shape have in common."""
    return text.translate(_NO_DIGITS)
