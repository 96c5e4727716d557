"""What people have, as lines with rank and time: a pasted message, the log of one rank or of all, files, a folder.

Logs are megabytes, so a line is decoded only if a search over the bytes has found it (`Log.lines_with`). Colours are
removed, and a progress bar's carriage return ends a line.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
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
END_OF_LINE = re.compile(rb"[\r\n]")
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
        self.data = ANSI.sub(b"", data) if b"\x1b" in data else data
        self.name, self.rank = name, rank

    def lines_with(self, texts: Iterable[str]) -> Iterator[Line]:
        """Yield each line that contains one of the texts, in order.

        Of lines that differ only in digits, yield at most MOST_ALIKE. A log has millions of lines, but few shapes
        of lines, and most texts are in none of these.
        """
        possible = [text for text in map(str.encode, texts) if self._may_have(text.translate(None, DIGITS))]
        there = [text for text in possible if text in self.data]
        if not there:
            return
        pattern = re.compile(b"|".join(map(re.escape, there)))
        counted, number, at = 0, 1, 0
        alike: Counter[bytes] = Counter()
        while match := pattern.search(self.data, at):
            start, end = self._bounds(match.start())
            at = end + 1
            shape = self.data[start:end].translate(None, DIGITS)
            alike[shape] += 1
            if alike[shape] <= MOST_ALIKE:
                number, counted = number + self.data.count(b"\n", counted, start), start
                yield self._line(start, end, number)

    def _may_have(self, shape: bytes) -> bool:
        """Return whether a line without digits has the text. To look up its whole words is faster than a search."""
        whole = (b"x" + shape + b"x").split()[1:-1]
        return self._words.issuperset(whole) and shape in self._shapes

    @cached_property
    def _words(self) -> set[bytes]:
        return set(self._shapes.split())

    @cached_property
    def _shapes(self) -> bytes:
        """Return each line without its digits, those that are equal once."""
        return b"\n".join(set(self.data.translate(None, DIGITS).splitlines()))

    def after(self, line: Line) -> Iterator[Line]:
        """Yield the lines that follow."""
        start, number = line.end + 1, line.number
        while start < len(self.data):
            number += self.data[start - 1 : start] == b"\n"
            end = self._bounds(start)[1]
            yield (line := self._line(start, end, number))
            start = end + 1

    def before(self, line: Line) -> Iterator[Line]:
        """Yield the lines above, the nearest first."""
        end, number = line.start - 1, line.number
        while end >= 0:
            number -= self.data[end : end + 1] == b"\n"
            start = self._bounds(end)[0]
            yield self._line(start, end, number)
            end = start - 1

    def ranks(self) -> set[int]:
        """Return every rank that a line names in its prefix."""
        found = re.findall(rb"(?:^|\n|\r)\[(?:rank|default|rank )(\d+)\]", self.data)
        return {int(number) for number in set(found)} | ({self.rank} if self.rank is not None else set())

    def _bounds(self, at: int) -> tuple[int, int]:
        for begin in (max(0, at - 10_000), 0):  # a log may be one line of megabytes, cut by carriage returns only
            if start := max(self.data.rfind(b"\n", begin, at), self.data.rfind(b"\r", begin, at)) + 1:
                break
        after = END_OF_LINE.search(self.data, at)
        return start, after.start() if after else len(self.data)

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
