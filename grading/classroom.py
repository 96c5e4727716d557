"""The instructor's cycle, on nbgrader's own API: release, grade, feedback, and the table of grades."""

import logging
import os
import re
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path

import nbformat
from nbgrader.api import Gradebook, MissingEntry
from nbgrader.apps import NbGraderAPI
from sqlalchemy.exc import SAWarning
from traitlets.config import Config, PyFileConfigLoader

from grading.checks import lab_module
from grading.executor import LACKS_CELLS, close_referees, read_verdicts
from grading.submitted import SubmissionError, inspect
from grading.verdict import Verdict

SPOILT = "Cells are not what was released, in number or in form: ask for the notebook with its cells as they were."
_OF_SPOILT_CELLS = ("Inconsistent checksums", "SchemaTooOldError", "nbgrader metadata may be corrupted", LACKS_CELLS)
ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Grade:
    """One submission's points by graded cell, as the gradebook has them, and the verdicts behind them."""

    student: str
    points: dict[str, float]
    max_points: dict[str, float]
    verdicts: list[Verdict]

    @property
    def total(self) -> float:
        return sum(self.points.values())


class Classroom:
    """A course directory that nbgrader works on; by default this repository. `settings` go before those in its file."""

    def __init__(self, root: Path = ROOT, settings: Config | None = None) -> None:
        config: Config = PyFileConfigLoader("nbgrader_config.py", path=str(ROOT / "grading")).load_config()
        config.CourseDirectory.root = str(root)
        config.CourseDirectory.db_url = f"sqlite:///{root}/grading/gradebook.db"
        config.merge(settings or {})
        self.root, self.db_url = root, config.CourseDirectory.db_url
        (root / "grading").mkdir(parents=True, exist_ok=True)
        _find_alembic()
        warnings.filterwarnings("ignore", category=SAWarning)  # of nbgrader's own queries
        self.api = NbGraderAPI(config=config)
        self.api.log.setLevel(logging.ERROR)

    def labs(self) -> list[str]:
        return sorted(p.name for p in (self.root / "solutions").iterdir() if (p / f"{p.name}.ipynb").is_file())

    def students(self, lab: str) -> list[str]:
        return sorted(p.parent.name for p in (self.root / "grading" / "submitted").glob(f"*/{lab}"))

    def release(self, lab: str) -> None:
        """solutions/<lab> -> labs/<lab>, without the answers."""
        _succeed(self.api.generate_assignment(lab, force=True, create=True), f"release {lab}")

    def hand_in(self, lab: str, student: str, nb: nbformat.NotebookNode) -> None:
        """Put a notebook where the student's submission belongs, in the place of an earlier one."""
        folder = self.submitted(lab, student)
        folder.mkdir(parents=True, exist_ok=True)
        nbformat.write(nb, folder / f"{lab}.ipynb")

    def autograde(self, lab: str, student: str) -> Grade:
        lab_module(lab)  # a lab without checks is the instructor's mistake, not the student's
        try:
            inspect(self.submitted(lab, student))
        except SubmissionError as error:
            raise RuntimeError(f"could not grade {student}'s {lab}: {error}") from None
        _succeed(self.api.autograde(lab, student, force=True, create=True), f"grade {student}'s {lab}")
        return self.grade(lab, student)

    def feedback(self, lab: str, student: str | None = None) -> None:
        _succeed(self.api.generate_feedback(lab, student, force=True), f"write feedback for {lab}")

    def grade(self, lab: str, student: str) -> Grade:
        """What the gradebook holds."""
        with Gradebook(self.db_url) as gradebook:
            try:
                submission = gradebook.find_submission(lab, student)
            except MissingEntry:
                raise LookupError(f"{student} has no graded submission of {lab}: run `shardlab grade {lab}`") from None
            points, most = {}, {}
            for notebook in submission.notebooks:
                for g in notebook.grades:
                    points[g.cell.name], most[g.cell.name] = float(g.score), float(g.max_score)
            return Grade(student, points, most, self._verdicts(lab, student))

    def submitted(self, lab: str, student: str) -> Path:
        """The folder with what was handed in."""
        return self.root / "grading" / "submitted" / student / lab

    def autograded(self, lab: str, student: str) -> Path:
        """The notebook as it ran, with the verdicts."""
        return self.root / "grading" / "autograded" / student / lab / f"{lab}.ipynb"

    def _verdicts(self, lab: str, student: str) -> list[Verdict]:
        notebook = self.autograded(lab, student)
        return read_verdicts(nbformat.read(notebook, as_version=4)) if notebook.exists() else []

    def close(self) -> None:
        close_referees()


def _find_alembic() -> None:
    """nbgrader runs `alembic` by name, which is beside our Python even where no environment was activated."""
    here = os.path.dirname(sys.executable)
    if here not in os.environ["PATH"].split(os.pathsep):
        os.environ["PATH"] = here + os.pathsep + os.environ["PATH"]


def _succeed(outcome: dict, what: str) -> None:
    if not outcome["success"]:
        raise RuntimeError(f"could not {what}: {_reason((outcome.get('log') or '') + (outcome.get('error') or ''))}")


def _reason(log: str) -> str:
    """What went wrong, out of nbgrader's log: the last exception that is not nbgrader's own summary, to its end."""
    parts = re.split(r"^ *(?:[\w.]+\.)?(\w+(?:Error|Exception)): ", log, flags=re.M)
    named = [f"{n}: {text}" for n, text in zip(parts[1::2], parts[2::2], strict=True) if n != "NbGraderException"]
    last = re.split(r"\n *(?:Traceback|\[ERROR\]|The above exception|During handling)", named[-1])[0] if named else log
    reason = last.strip()[-2000:] or "nbgrader gave no reason"
    return f"{reason}\n{SPOILT}" if any(words in reason for words in _OF_SPOILT_CELLS) else reason
