"""The index of messages: one entry for each message, read from symptoms/TOPIC.toml.

A wrong file is refused with the names of file, entry and field. `python -m shardwhy.index [FILE...]` checks files.
"""

import re
import sys
import tomllib
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path

SYMPTOMS = Path(__file__).parent / "symptoms"
PROGRAMS = Path(__file__).parent / "programs"
SIGNS = ("signs", "near", "hints")
TEXTS = ("message", "pattern", "means", "tell", "do", "lesson", "section", "source")
ID = re.compile(r"[a-z][a-z0-9_]*")


class BadEntry(ValueError):
    """Says which file, entry and field of the index is wrong."""


@dataclass(frozen=True)
class Entry:
    """One message: what it means, why it comes, how to tell the causes apart, what to do, and where it is taught."""

    id: str
    topic: str  # the name of its file
    message: str  # as people see it
    pattern: str  # a regular expression, searched in one line of a log
    means: str
    causes: tuple[str, ...]  # the most frequent first
    tell: str
    do: str
    lesson: str
    section: str  # a heading of the lesson
    source: str
    consequence: bool  # it follows another error, and is never the first cause beside one
    program: bool = False  # programs/ID.py raises it on CPU ranks
    gpu_only: str = ""  # or why that is impossible
    min_torch: str = ""
    signs: tuple[tuple[int, str], ...] = ()  # a cause's number, and words of a line that point to this cause
    near: tuple[tuple[int, str], ...] = ()  # the same for the lines around: the traceback, and what came before
    hints: tuple[tuple[int, str], ...] = ()  # words around that make a cause likely, not sure: they decide the order
    family: bool = False  # many messages of one kind: only a first error that no other entry knows is compared with it

    @cached_property
    def regex(self) -> re.Pattern:
        return re.compile(self.pattern)

    def signed_cause(self, text: str, around: str = "") -> int | None:
        """Return the number of the cause that the words of a line point to, or else those of the lines around it."""
        said = ((number, re.search(sign, text)) for number, sign in self.signs)
        stands_near = ((number, re.search(sign, around)) for number, sign in self.near)
        return next((number for number, found in chain(said, stands_near) if found), None)

    def hinted_cause(self, around: str) -> int | None:
        """Return the number of the cause that is likely after the words of the lines around."""
        return next((number for number, hint in self.hints if re.search(hint, around)), None)

    @property
    def program_file(self) -> Path:
        return PROGRAMS / f"{self.id}.py"


def load(folder: Path = SYMPTOMS) -> dict[str, Entry]:
    """Return every entry of the folder's .toml files by its id; raises BadEntry."""
    return load_files(sorted(folder.glob("*.toml")))


def load_files(files: list[Path]) -> dict[str, Entry]:
    """Return every entry of these files by its id; raises BadEntry."""
    entries: dict[str, Entry] = {}
    for file in files:
        try:
            tables = tomllib.loads(file.read_text(encoding="utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise BadEntry(f"{file.name} is not TOML: {error}") from None
        for name, fields in tables.items():
            if name in entries:
                raise BadEntry(f"{file.name} [{name}]: the id is also in {entries[name].topic}.toml")
            entries[name] = _entry(file, name, fields)
    return entries


def _entry(file: Path, name: str, fields: object) -> Entry:
    def refuse(field: str, why: str) -> BadEntry:
        return BadEntry(f"{file.name} [{name}] {field}: {why}")

    if not isinstance(fields, dict):
        raise refuse("", "belongs to no entry; write it below a [name]")
    if not ID.fullmatch(name):
        raise refuse("", "an id is lowercase_with_underscores")
    known = {*TEXTS, "causes", "consequence", "program", "gpu_only", "min_torch", *SIGNS, "family"}
    for field in fields:
        if field not in known:
            raise refuse(field, "there is no such field")
    for field in (*TEXTS, "causes", "consequence"):
        if field not in fields:
            raise refuse(field, "is missing")
    for field in (*TEXTS, *({"gpu_only", "min_torch"} & fields.keys())):
        if not isinstance(fields[field], str) or not fields[field].strip():
            raise refuse(field, "is a text that is not empty")
    for field in ("message", "pattern", "lesson", "section", "source"):
        if "\n" in fields[field]:
            raise refuse(field, "is one line")
    causes = fields["causes"]
    if not isinstance(causes, list) or not causes or not all(isinstance(c, str) and c.strip() for c in causes):
        raise refuse("causes", "is a list of sentences, at least one")
    for field in ("consequence", "program", "family"):
        if not isinstance(fields.get(field, False), bool):
            raise refuse(field, "is true or false")
    if bool(fields.get("program")) == bool(fields.get("gpu_only")):
        raise refuse("program", "either program = true, or gpu_only says why there is none")
    if not fields["lesson"].endswith(".ipynb"):
        raise refuse("lesson", "is the name of a notebook, such as 03a_ddp_buckets.ipynb")
    if not re.fullmatch(r"(\d+\.\d+(\.\d+)?)?", fields.get("min_torch", "")):
        raise refuse("min_torch", 'is a version, such as "2.11"')
    try:
        pattern = re.compile(fields["pattern"])
    except re.error as error:
        raise refuse("pattern", f"is not a regular expression: {error}") from None
    for field in SIGNS:
        signs = fields.get(field, {})
        if not isinstance(signs, dict) or not signs.keys() <= {str(n + 1) for n in range(len(causes))}:
            raise refuse(field, "has the number of a cause on the left of each =")
        if not all(isinstance(sign, str) and _is_pattern(sign) for sign in signs.values()):
            raise refuse(field, "has a regular expression on the right of each =")
    if pattern.search("") or pattern.search("loss: 2.31, step 7, rank 0"):
        raise refuse("pattern", "matches any line")
    return Entry(
        id=name,
        topic=file.stem,
        **{k: v for k, v in fields.items() if k not in {"causes", *SIGNS}},
        causes=tuple(causes),
        **{field: tuple((int(n), sign) for n, sign in fields.get(field, {}).items()) for field in SIGNS},
    )


def _is_pattern(text: str) -> bool:
    try:
        return bool(re.compile(text))
    except re.error:
        return False


if __name__ == "__main__":
    try:
        found = load_files([Path(name) for name in sys.argv[1:]] or sorted(SYMPTOMS.glob("*.toml")))
    except (BadEntry, OSError) as wrong:
        sys.exit(str(wrong))
    print(f"{len(found)} entries, all in order")
