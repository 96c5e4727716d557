"""Find the first cause in logs: not the loudest message, and not one that only follows another error.

Four kinds of lines, the strongest first:

1. an error: of an entry, or of a Python traceback that no entry knows
2. the end of a wait: a rank timed out, or lost its connection, because of another rank
3. a warning
4. a consequence: an entry says so, such as torchrun's ChildFailedError

Among errors the earliest counts: by time, if each has one. Else an error on the rank that torchrun names as its root
cause comes first, and then the order of lines.

If no entry knows the first cause, its line is compared with the families: entries for many messages of one kind. So a
family never decides which line is the first cause.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, islice, takewhile

from shardwhy.around import around, same_collective
from shardwhy.index import BadEntry, Entry
from shardwhy.literals import SHORTEST, literals
from shardwhy.logs import Line, Log, rank_of, time_of, without_digits

ERROR, WAIT, WARNING, CONSEQUENCE = range(4)
NEAR, LONGEST_TRACEBACK = 50, 5000  # lines, those of other ranks between them counted
TRACEBACK = "Traceback (most recent call last)"
ROOT_CAUSE = "Root Cause (first observed failure)"
WAITED = re.compile(
    r"tim(?:ed|e)[ -]?out|connection (?:was )?(?:reset|closed|refused)|broken pipe|heartbeat|remote process exited"
    r"|while waiting for send/recv",
    re.IGNORECASE,
)
GONE = re.compile(r"died unexpectedly|process has died|worker died or was killed")  # without saying why
WARNED = re.compile(r"Warning\b|\bWARN(?:ING)?\b|^\[?[WI]\d{3,4} |\bINFO\b|\bDEBUG\b")
LATER = re.compile(f"{WARNED.pattern}|^terminate called after throwing")
FOLLOWS = re.compile(  # errors of Python that only say that another process has ended, or was ended
    r"(?:[\w.]*\.)?(?:ChildFailedError|ProcessRaisedException|ProcessExitedException|CalledProcessError|SignalException"
    r"|ActorHandleNotFoundError|KeyboardInterrupt|SystemExit|BrokenPipeError|ConnectionResetError)\b"
    r"|RuntimeError: Engine core initialization failed|RuntimeError: Failed to unpickle serialized exception"
    r"|\w+: Caught \w+ in (?:replica \d+ on device|pin memory thread)"  # the original traceback is below
    r"|\w+: Traceback \(most recent call last\):$"  # a message that is another process's traceback
    r"|CheckpointException: CheckpointException ranks:"  # the error of the rank is below, with a traceback of its own
    r"|Exception:$"  # torch.multiprocessing.spawn of old versions; the process and its traceback are below
)
FRAME = re.compile(r'\s+File ".*", line \d+, in ')
BARE = re.compile(r"[A-Za-z_][\w.]*(?:Error|Exception):?$")
MARKS = re.compile(r"[^\s^~]")  # Python marks the part of a line of code with ^^^^ below it
ERROR_LINE = re.compile(r"[A-Za-z_][\w.]*(?:Error|Exception): .")
FINAL = re.compile(r"[A-Za-z_][\w.]*(?:: .*|:)?$")
LOOKS_LIKE_AN_ERROR = [
    *("Error", "error:", "ERROR", "Exception", "FATAL", "Fatal", "fatal", "Killed", "Aborted"),
    *("Segmentation fault", "core dumped", "can't open file", "Failed", "failed", "FAILED"),
    *("Bus error", "Illegal instruction", "No module named "),
]


@dataclass(frozen=True)
class Found:
    """One line that an entry knows, or the last line of a traceback that no entry knows."""

    entry: Entry | None
    line: Line
    rank: int | None
    kind: int
    order: tuple[int, int]  # file, offset


@dataclass(frozen=True)
class Diagnosis:
    """The first cause, or what is known without it."""

    cause: Found | None  # its entry is None if no entry knows it
    others: tuple[Found, ...]  # what else was found, once for each entry
    silent: tuple[int, ...] = ()  # if the cause is the end of a wait: ranks that do not report one
    around: str = ""  # the lines around the cause's
    error_line: Line | None = None  # if there is no cause: the first line that looks like an error


def diagnose(logs: list[Log], entries: Iterable[Entry]) -> Diagnosis:
    """Return the first cause that the logs show."""
    entries = list(entries)
    known = _Known([entry for entry in entries if not entry.family])
    families = [entry for entry in entries if entry.family]
    found = [f for number, log in enumerate(logs) for f in _found(number, log, known)]
    if all(f.kind == CONSEQUENCE for f in found):
        found += islice(_bare_errors(logs, known), 1)
    if not found:
        line = _error_line(logs)
        kin = line and _family_of(line, families)
        cause = Found(kin, line, rank_of(line), ERROR, (0, 0)) if kin else None
        return Diagnosis(cause, (), around=around(line) if line else "", error_line=line)
    root = next((rank for log in logs if (rank := _root_rank(log)) is not None), None)
    cause = _first(found, root)
    if GONE.search(cause.line.text):  # a wait that ended before ends the process, too
        cause = next((f for f in found if f.kind == WAIT and f.order < cause.order), cause)
    if (
        cause.kind == WAIT
    ):  # torch's sockets only warn of what they then wait for in vain, such as a name without address
        explained = (f for f in found if f.kind == WARNING and "[c10d]" in f.line.text)
        cause = next((f for f in explained if f.entry.topic == cause.entry.topic), cause)
    cause = next((f for f in found if f.kind <= cause.kind and _is_last_error(f, cause)), cause)
    cause = next((f for f in found if _is_a_warning_before(f, cause)), cause)
    cause = next((f for f in found if _is_next_line_and_says_more(f, cause)), cause)
    if not cause.entry:
        cause = replace(cause, entry=_family_of(cause.line, families))
    others = {f.entry.id: f for f in reversed(found) if f.entry and f.entry != cause.entry}
    silent = _silent(logs, found, cause) if cause.kind == WAIT else ()
    words = around(cause.line, cause.kind == WAIT)
    if cause.kind == WAIT and not silent:
        words += "\n" + same_collective(logs)
    return Diagnosis(cause, tuple(reversed(others.values())), silent, words)


def _family_of(line: Line, families: list[Entry]) -> Entry | None:
    """Return the first family, in the order of the file, that the line belongs to, or what it leads to."""
    texts = [line.text]
    below = [x.text for x in islice(line.log.after(line), NEAR) if x.rank == line.rank and x.text.strip()]
    announced = line.text.endswith(":") and not BARE.match(line.text)
    if announced or (BARE.match(line.text) and below and below[0][:1].isspace()):  # its words stand below
        texts = [*map(str.strip, below[:4]), line.text]
    elif BARE.match(line.text):  # an assertion without words: the code above says what it checks
        above = (x.text for x in islice(line.log.before(line), NEAR) if x.rank == line.rank and MARKS.search(x.text))
        texts = [*islice(above, 1), line.text]
    return next((family for text in texts for family in families if family.regex.search(text)), None)


class _Known:
    """The entries, and texts of which at least one is in every line that an entry matches."""

    def __init__(self, entries: list[Entry]) -> None:
        of_entries = [(literals(entry.pattern), entry) for entry in entries]
        for parts, entry in of_entries:
            if not parts:
                raise BadEntry(f"{entry.topic}.toml [{entry.id}] pattern: has no literal part of {SHORTEST} letters")
        self.texts = frozenset({TRACEBACK}).union(*(parts for parts, _ in of_entries))
        self._shapes = [(set(map(without_digits, parts)), entry) for parts, entry in of_entries]
        self._possible: dict[str, list[Entry]] = {}  # by the shape of a line

    def match(self, text: str) -> tuple[Entry, re.Match] | None:
        """Return the entry whose match in the text is widest, which says most about it, and the match."""
        shape = without_digits(text)
        if shape not in self._possible:
            self._possible[shape] = [entry for shapes, entry in self._shapes if any(s in shape for s in shapes)]
        matches = [(entry, match) for entry in self._possible[shape] if (match := entry.regex.search(text))]
        return max(matches, key=lambda m: m[1].end() - m[1].start(), default=None)


def _found(number: int, log: Log, known: _Known) -> list[Found]:
    found = []
    seen: dict[tuple, int] = {}
    for line in log.lines_with(known.texts):
        order = (number, line.start)
        if match := known.match(line.text):
            entry = match[0]
            if line.text[:1].isspace() and _in_traceback(line):
                if not _ends_in_topic(line, entry.topic, known):
                    continue
                line, match = _said_at_the_end(line, entry, known) or (line, match)
            kind = _kind(*match)
            if seen.setdefault((entry.id, line.rank), CONSEQUENCE + 1) > kind:  # the first of a rank is enough
                seen[entry.id, line.rank] = kind
                found.append(Found(entry, line, rank_of(line), kind, order))
        elif TRACEBACK in line.text and (last := _unknown(line, known)):
            found.append(Found(None, last, rank_of(line) if last.rank is None else last.rank, ERROR, order))
    return found


def _kind(entry: Entry, match: re.Match) -> int:
    if entry.consequence:
        return CONSEQUENCE
    before = match.string[: match.start()]  # a message may say "set NCCL_DEBUG=INFO"; a level stands before it
    if " NCCL WARN" not in before and (WARNED.search(before) or re.match(r"\w*Warning\b", match[0])):
        return WARNING
    return WAIT if WAITED.search(match.string) else ERROR


def _in_traceback(line: Line) -> bool:
    """Return whether a line is one of a traceback's frames, or the code that is quoted below one."""
    above = next((x for x in islice(line.log.before(line), NEAR) if x.rank == line.rank), None)
    return any(x is not None and FRAME.match(x.text) for x in (line, above))


def _ends_in_topic(line: Line, topic: str, known: _Known) -> bool:
    """Return whether the traceback ends with an error of this topic. A frame says where an error was, and not which."""
    below = (x for x in islice(line.log.after(line), LONGEST_TRACEBACK) if x.rank == line.rank)
    last = next((x for x in below if x.text and not x.text[0].isspace()), None)
    match = last and known.match(last.text)
    if last and BARE.match(last.text):  # it has no words of its own, so the code that raised it speaks
        between = (x for x in islice(line.log.after(line), LONGEST_TRACEBACK) if x.rank == line.rank)
        return not any(FRAME.match(x.text) for x in takewhile(lambda x: x.start < last.start, between))
    return bool(match) and match[0].topic == topic


def _said_at_the_end(line: Line, entry: Entry, known: _Known) -> tuple[Line, tuple[Entry, re.Match]] | None:
    """Return the traceback's last line if it says the same as this line of code: it has the names and numbers."""
    below = (x for x in islice(line.log.after(line), NEAR) if x.rank == line.rank)
    last = next((x for x in below if x.text and not x.text[0].isspace()), None)
    match = known.match(last.text) if last else None
    return (last, match) if last and match and match[0] == entry else None


def _unknown(traceback: Line, known: _Known) -> Line | None:
    """Return the last line of the traceback, or None if an entry knows it, or if it says only who has ended.

    Whatever stands before the word Traceback, such as the name of a node, stands before each line of it.
    """
    lead = traceback.text[: traceback.text.index(TRACEBACK)]
    below = islice(traceback.log.after(traceback), LONGEST_TRACEBACK)
    same_rank = (line for line in below if traceback.rank in (line.rank, None))
    near = list(islice(same_rank, NEAR))
    if not any(line.text.startswith(f"{lead}  File ") for line in near):
        lead = ""
    for line in chain(near, same_rank):
        text = line.text.removeprefix(lead)
        if text == line.text and lead:
            continue
        if text and not text.startswith((" ", "\t", "|", "│", "╰")):  # Rich draws a box around a traceback
            if known.match(text) or FOLLOWS.match(text) or not FINAL.match(text):
                return None
            return replace(line, text=text, rank=line.rank if traceback.rank is None else traceback.rank)
    return None


def _bare_errors(logs: list[Log], known: _Known) -> Iterator[Found]:
    """Yield errors of Python without the first line of their traceback: cut off, or in torchrun's table."""
    for number, log in enumerate(logs):
        for line in log.lines_with(["Error: ", "Exception: "]):
            said = line.text.strip()
            if ERROR_LINE.match(said) and not FOLLOWS.match(said) and not known.match(said):
                yield Found(None, replace(line, text=said), rank_of(line), ERROR, (number, line.start))


def _first(found: list[Found], root: int | None) -> Found:
    strongest = min(f.kind for f in found)
    candidates = [f for f in found if f.kind == strongest]
    if strongest == ERROR and any(f.entry for f in candidates):
        # A rank that goes on after a traceback has survived it, and without ranks nobody can tell.
        ranks = {f.rank for f in candidates if f.entry}
        candidates = [f for f in candidates if f.entry or not {f.rank, None} & ranks and f.rank is not None]
    times = {f: time_of(f.line) for f in candidates}
    if None in times.values():
        return min(candidates, key=lambda f: (root is not None and f.rank not in (root, None), f.order))
    return min(candidates, key=lambda f: (times[f], f.order))


def _is_last_error(found: Found, cause: Found) -> bool:
    """Return whether NCCL names `found` as its last error, a few lines below the general message `cause`."""
    if not found.entry or not cause.entry or found.entry.topic != cause.entry.topic:
        return False
    same_place = found.line.log is cause.line.log and 0 < found.line.number - cause.line.number < NEAR
    above = next((x for x in islice(found.line.log.before(found.line), NEAR) if x.rank == found.line.rank), None)
    return same_place and found.rank == cause.rank and above is not None and above.text == "Last error:"


def _is_next_line_and_says_more(found: Found, cause: Found) -> bool:
    """Return whether `found` is the next line of the same message, as a second list of keys is, and a wider match."""
    if not all(f.entry and f.line.text[:1].isspace() for f in (cause, found)) or found.line.log is not cause.line.log:
        return False
    width = [max((len(m[0]) for m in f.entry.regex.finditer(f.line.text)), default=0) for f in (cause, found)]
    return found.line.number == cause.line.number + 1 and width[0] < width[1]


def _is_a_warning_before(found: Found, cause: Found) -> bool:
    """Return whether NCCL has said in `found` what went wrong, above the general message `cause` of PyTorch."""
    if not found.entry or not cause.entry or {found.entry.topic, cause.entry.topic} != {"nccl"}:
        return False
    above = found.line.log is cause.line.log and 0 < cause.line.number - found.line.number < NEAR
    return above and " NCCL WARN" in found.line.text and " NCCL WARN" not in cause.line.text


def _root_rank(log: Log) -> int | None:
    """Return the rank that torchrun saw fail first."""
    for line in log.lines_with([ROOT_CAUSE]):
        for below in islice(log.after(line), 6):
            if below.text.lstrip().startswith("rank "):
                return below.rank
    return None


def _silent(logs: list[Log], found: list[Found], cause: Found) -> tuple[int, ...]:
    waiting = {f.rank for f in found if f.kind == WAIT}
    return tuple(sorted(set().union(*(log.ranks() for log in logs)) - waiting)) if cause.rank is not None else ()


def _error_line(logs: list[Log]) -> Line | None:
    lines = [line for log in logs for line in islice(log.lines_with(LOOKS_LIKE_AN_ERROR), 1000)]
    # the line below `terminate called after throwing` has the words of the error
    return min(lines, key=lambda x: bool(LATER.search(x.text)) * (1 + (" INFO " in x.text)), default=None)
