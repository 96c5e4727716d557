"""Cache of judged submissions: outputs and verdicts, kept until something changes that they depend on.

grading/judged/<lab>/<student>.json is written in one step when a submission has been judged. It is read when nbgrader
grades it: by the same process, by another on another machine, or the next day after a power cut. Deleting the folder
loses no grade; it makes the next grading run everything again.
"""

import hashlib
import json
import os
import sys
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import torch
from nbformat import NotebookNode

from grading.judge.verdict import Verdict

_ROOT = Path(__file__).resolve().parents[2]
_GRADER = ("grading/*.py", "grading/boxes/sandbox/*.py", "lib/shardlab/**/*.py")


@dataclass(frozen=True)
class Judged:
    """A judged submission. `made_of`: digests. `cells`: outputs and execution_count. `problem`: the run's, if any."""

    made_of: dict[str, str]
    cells: list[dict]
    verdicts: list[Verdict]
    problem: str
    seconds: float
    judged_again: int = 0  # how often a check was judged again because of noise

    @property
    def unclear(self) -> list[Verdict]:
        """Verdicts that can't be graded: the machine was too noisy, or an instructor has to look."""
        return [v for v in self.verdicts if v.inconclusive]


class Shelf:
    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    def file(self, lab: str, student: str) -> Path:
        return self.folder / lab / f"{student}.json"

    def get(self, lab: str, student: str) -> Judged | None:
        try:
            record = json.loads(self.file(lab, student).read_text(encoding="utf-8"))
            verdicts = [Verdict.from_json(v) for v in record.pop("verdicts")]
            return Judged(verdicts=verdicts, **record)
        except (OSError, ValueError, TypeError, KeyError):  # missing, or written by an older grader
            return None

    def in_gradebook(self, lab: str, student: str) -> bool:
        """Return True if the gradebook has the points of this record."""
        file, mark = self.file(lab, student), self._mark(lab, student)
        return file.exists() and mark.exists() and mark.read_text(encoding="utf-8") == _digest_of(file)

    def mark_in_gradebook(self, lab: str, student: str) -> None:
        write_whole(self._mark(lab, student), _digest_of(self.file(lab, student)))

    def _mark(self, lab: str, student: str) -> Path:
        return self.folder / lab / f"{student}.in_gradebook"

    def put(self, lab: str, student: str, judged: Judged) -> None:
        record = asdict(judged) | {"verdicts": [v.as_json() for v in judged.verdicts]}
        write_whole(self.file(lab, student), json.dumps(record))


def write_whole(file: Path, text: str) -> None:
    """Write a file in one step: after a power cut it has the old or the new text, after an OSError the old one."""
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        draft.write_text(text, encoding="utf-8")
        draft.replace(file)
    finally:
        draft.unlink(missing_ok=True)


def digest_of(nb: NotebookNode) -> str:
    """Digest of what is judged in a notebook: no outputs, and no cell ids, which nbformat may draw at each reading."""
    return _digest([(c.cell_type, c.source, c.metadata.get("nbgrader", {})) for c in nb.cells])


def made_of(nb: NotebookNode, folder: Path, lab: str, settings: dict) -> dict[str, str]:
    """Digests of all that the judgement depends on: the submission, the lab's checks and settings, the grader."""
    beside = sorted(p for p in folder.rglob("*") if p.is_file() and p.name not in (f"{lab}.ipynb", "timestamp.txt"))
    files = [(str(p.relative_to(folder)), _digest_of(p)) for p in beside]
    checks = _digest_of_files(f"grading/checks/{lab}/**/*.py")
    return {"submission": _digest([digest_of(nb), files]), "lab": _digest([checks, settings]), "grader": _grader()}


@cache
def _grader() -> str:
    return _digest([_digest_of_files(*_GRADER), torch.__version__, sys.version])


def _digest_of_files(*patterns: str) -> str:
    files = sorted(path for pattern in patterns for path in _ROOT.glob(pattern))
    return _digest([[str(path.relative_to(_ROOT)), path.read_text(encoding="utf-8")] for path in files])


def _digest_of(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _digest(of) -> str:
    return hashlib.sha256(json.dumps(of, sort_keys=True).encode()).hexdigest()
