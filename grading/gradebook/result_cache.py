"""Cache of judged submissions: outputs and verdicts, kept until something changes that they depend on.

grading/judged/<lab>/<student>.json is written in one step when a submission has been judged. It is read when nbgrader
grades it: by the same process, by another on another machine, or the next day after a power cut. Deleting the folder
loses no grade; it makes the next grading run everything again.
"""

import hashlib
import json
import os
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import torch
from nbformat import NotebookNode

from grading.judge.find_lab import lab_module
from grading.judge.judge_submission import Judged, Settings, Submission
from grading.judge.verdict import Verdict

_ROOT = Path(__file__).resolve().parents[2]
# Files that decide a result besides the lab's own checks and our answers. A test compares them with what the judge,
# boxes and answers import.
GRADER = (
    "grading/*.py",
    "grading/boxes/**/*.py",
    "grading/judge/**/*.py",
    "grading/student/**/*.py",
    "grading/checks/*.py",
    "grading/gradebook/nbgrader_preprocessor.py",  # says which cell belongs to which check
    "lib/shardlab/**/*.py",
    "lib/shardsim/**/*.py",
    "lib/shardplan/**/*.py",
    "lib/shardtrace/**/*.py",
    "lib/shardwhy/*.py",
    "lib/shardcourse/__init__.py",
    "lib/shardcourse/nvidia_smi.py",
    "lib/shardcourse/source_text.py",
)


@dataclass(frozen=True)
class Kept:
    """A stored result, and the digests of what it was made of."""

    made_of: dict[str, str]
    judged: Judged


class Shelf:
    """A folder of results. Any process may read it; a result is written by the one that judged the submission."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    def file(self, lab: str, student: str) -> Path:
        return self.folder / lab / f"{student}.json"

    def get(self, lab: str, student: str) -> Kept | None:
        try:
            record = json.loads(self.file(lab, student).read_text(encoding="utf-8"))
            verdicts = [Verdict.from_json(v) for v in record.pop("verdicts")]
            return Kept(record.pop("made_of"), Judged(verdicts=verdicts, **record))
        except (OSError, ValueError, TypeError, KeyError, AttributeError):  # missing, or written by an older grader
            return None

    def keep(self, lab: str, student: str, made_of: dict[str, str], judged: Judged) -> Judged:
        """Store a result and return it. If it is unclear, a clear one with the same digests stays and is returned."""
        found = self.get(lab, student)
        if judged.unclear and found and found.made_of == made_of and not found.judged.unclear:
            return found.judged
        record = asdict(judged) | {"verdicts": [v.as_json() for v in judged.verdicts], "made_of": made_of}
        write_whole(self.file(lab, student), json.dumps(record))
        return judged

    def in_gradebook(self, lab: str, student: str) -> bool:
        """Return True if the gradebook has the points of this record."""
        file, mark = self.file(lab, student), self._mark(lab, student)
        return file.exists() and mark.exists() and mark.read_text(encoding="utf-8") == _digest_of(file)

    def mark_in_gradebook(self, lab: str, student: str) -> None:
        write_whole(self._mark(lab, student), _digest_of(self.file(lab, student)))

    def problem(self, lab: str, student: str) -> str:
        """Return why the last submission has no grade; "" if it has one, or if nobody tried."""
        with suppress(OSError, ValueError):
            return self._problem(lab, student).read_text(encoding="utf-8")
        return ""

    def note_problem(self, lab: str, student: str, words: str) -> bool:
        """Keep why a submission has no grade, or "" for no reason. Return True if this is new."""
        before = self.problem(lab, student)
        with suppress(OSError):
            if words:
                write_whole(self._problem(lab, student), words)
            else:
                self._problem(lab, student).unlink(missing_ok=True)
        return words != before

    def _problem(self, lab: str, student: str) -> Path:
        return self.folder / lab / f"{student}.problem"

    def _mark(self, lab: str, student: str) -> Path:
        return self.folder / lab / f"{student}.in_gradebook"


def write_whole(file: Path, text: str) -> None:
    """Write a file in one step: after a power cut it has the old or the new text, after an OSError the old one."""
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        draft.write_text(text, encoding="utf-8")
        draft.replace(file)
    finally:
        draft.unlink(missing_ok=True)


def made_of(submission: Submission, settings: Settings) -> dict[str, str]:
    """Return digests of all that a judgement depends on: the submission, the lab's checks, our own answers to it and
    its settings, the grader."""
    lab, folder = submission.lab, submission.files
    beside = sorted(p for p in folder.rglob("*") if p.is_file() and p.name not in (f"{lab}.ipynb", "timestamp.txt"))
    files = [(str(p.relative_to(folder)), _digest_of(p)) for p in beside]
    checks = Path(lab_module(lab).__file__).parent
    judges = [
        _digest_of_files(checks, "**/*.py"),
        _digest_of_files(_ROOT / "grading/references" / checks.name, "**/*.py"),
    ]
    return {
        "submission": _digest([_cells(submission.notebook), files]),
        "lab": _digest([*judges, settings.deciding]),
        "grader": grader(),
    }


def _cells(nb: NotebookNode) -> list:
    """Return the parts of cells that are judged: no outputs, and no ids, which nbformat may draw at each reading."""
    return [(c.cell_type, c.source, c.metadata.get("nbgrader", {})) for c in nb.cells]


@cache
def grader() -> str:
    """Return a digest of the grader itself, with the Python and the PyTorch that it runs on."""
    return _digest([_digest_of_files(_ROOT, *GRADER), torch.__version__, sys.version])


def _digest_of_files(folder: Path, *patterns: str) -> str:
    files = sorted({path for pattern in patterns for path in folder.glob(pattern)})
    return _digest([[str(path.relative_to(folder)), path.read_text(encoding="utf-8")] for path in files])


def _digest_of(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _digest(of) -> str:
    return hashlib.sha256(json.dumps(of, sort_keys=True).encode()).hexdigest()
