"""The answer to a log or a message, in at most ten lines."""

from itertools import islice
from pathlib import Path

from shardwhy.around import caller_of, raised_in
from shardwhy.first_cause import BARE, CONSEQUENCE, ERROR, WAIT, WARNING, Diagnosis, Found
from shardwhy.index import Entry
from shardwhy.logs import Line, Log, ranks_in_words

LONGEST = 200  # characters of a line of a log that are shown
UNKNOWN_NEXT = (
    "Collect next: the logs of all ranks (torchrun --log-dir logs --redirects 3), and run this command on the folder.",
    "If ranks wait: TORCH_NCCL_TRACE_BUFFER_SIZE=2000, and py-spy dump of each rank.  If a process was killed: dmesg.",
    "A lesson on how to find the rank that is wrong: 13a_hangs.ipynb. All messages that are known: course/messages.md.",
)


def answer(diagnosis: Diagnosis, logs: list[Log]) -> list[str]:
    """Return the lines to print."""
    cause = diagnosis.cause
    if cause is None or cause.entry is None:
        return _unknown(diagnosis, logs)
    entry = cause.entry
    known = f"{_heading(cause)}{_where(cause)}: {_cut(entry.message, 100)} [{entry.id}]"
    kind = f"I don't know this message, but its kind [{entry.id}]. The first error is{_where(cause)}."
    lines = [
        kind if entry.family else known,
        f"The line: {_cut(cause.line.text)}{_raised_in(cause)}",
        f"It means: {entry.means}",
        _causes(entry, cause.line.text, diagnosis.around) + _or_the_caller(cause),
        f"How to tell: {entry.tell}",
        f"What to do: {entry.do}",
        f'Read: course/{entry.lesson}, "{entry.section}"',
    ]
    if entry.program:
        lines.append(f"See it on your CPU: python {_here(entry.program_file)}")
    if diagnosis.silent:
        lines.append(f"No timeout is reported by {ranks_in_words(diagnosis.silent)}: look there first.")
    if diagnosis.others:
        lines.append(f"Also found, not first: {_names(diagnosis.others)}")
    return [_one_line(line) for line in lines]


def _unknown(diagnosis: Diagnosis, logs: list[Log]) -> list[str]:
    lines = []
    if cause := diagnosis.cause:
        words = _cut(cause.line.text) + (_raised_by(cause.line) or _raised_in(cause))
        lines.append(f"I don't know this message. The first error is{_where(cause)}: {words}")
    elif line := diagnosis.error_line:
        looks = f"The first line that looks like an error is {_at(line)}"
        lines.append(f"I don't know this message. {looks}: {_cut(line.text)}")
    else:
        read = ", ".join(log.name for log in logs if log.name) or "the text"
        lines.append(f"I don't know this message. No line of {_cut(read)} looks like an error.")
    if diagnosis.others:
        lines.append(f"Found, but it follows from another error: {_names(diagnosis.others)}")
    return [_one_line(line) for line in (*lines, *UNKNOWN_NEXT)]


def _raised_in(cause: Found) -> str:
    place = raised_in(cause.line) if cause.kind == ERROR else ""
    return f" ({_cut(place)})" if place else ""


def _raised_by(line: Line) -> str:
    """Return the code that raised an error without words: a bare AssertionError says nothing."""
    if not BARE.match(line.text):
        return ""
    above = next((x.text.strip() for x in islice(line.log.before(line), 50) if x.rank == line.rank), "")
    return f", raised by: {_cut(above)}" if above else ""


def _causes(entry: Entry, text: str, around: str) -> str:
    if len(entry.causes) == 1:
        return f"Likely cause: {entry.causes[0]}"
    likely, causes = "most frequent", list(entry.causes)
    number = entry.signed_cause(text, around)
    if number and not entry.family:
        return f"Likely cause: {entry.causes[number - 1]}{_more(entry)}"
    if number := number or entry.hinted_cause(around):
        likely = "likeliest"  # many messages are of a family's kind, so a sign only decides the order
        causes.insert(0, causes.pop(number - 1))
    return f"It may be, the {likely} first: " + " ".join(f"({n}) {x}" for n, x in enumerate(causes, 1))


def _or_the_caller(cause: Found) -> str:
    """Return that a package may call wrongly, unless the entry says so itself or the program itself is the caller."""
    entry, package = cause.entry, caller_of(cause.line) if cause.kind == ERROR else ""
    if not package or not entry or entry.family or any("version" in said for said in entry.causes):
        return ""
    return (
        f" If your settings are usual, the error may be that of {package}, which makes the call: try another version."
    )


def _more(entry: Entry) -> str:
    others = len(entry.causes) - 1
    return f" ({others} other cause{'s' * (others > 1)}: course/messages.md#{entry.id})" if others else ""


def _heading(cause: Found) -> str:
    if cause.kind == CONSEQUENCE:
        return "This message follows another error, which is not in what I read. It is"
    if cause.kind == WAIT:
        return "First cause: a wait that ended,"
    return "First cause: a warning," if cause.kind == WARNING else "First cause:"


def _where(cause: Found) -> str:
    return ("" if cause.rank is None else f" rank {cause.rank},") + f" {_at(cause.line)}"


def _at(line: Line) -> str:
    return f"{line.log.name}:{line.number}" if line.log.name else f"line {line.number}"


def _names(others: tuple[Found, ...]) -> str:
    shown = [f"{f.entry.id} ({_at(f.line)})" for f in others[:4] if f.entry]
    return ", ".join(shown) + (f" and {len(others) - 4} more" if len(others) > 4 else "")


def _cut(text: str, longest: int = LONGEST) -> str:
    text = text.strip()
    return text if len(text) <= longest else text[: longest - 4] + " ..."


def _here(file: Path) -> Path:
    return file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file


def _one_line(text: str) -> str:
    return " ".join(text.split())
