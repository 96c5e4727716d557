"""The instructor's workflow, on nbgrader's own API: release, grade, feedback, and the table of grades."""

import copy
import logging
import os
import re
import shutil
import sys
import warnings
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import nbformat
from nbgrader.api import Gradebook, MissingEntry, SubmittedAssignment
from nbgrader.apps import NbGraderAPI
from nbgrader.utils import find_all_files
from sqlalchemy.exc import SAWarning
from traitlets.config import Config, PyFileConfigLoader
from traitlets.utils.importstring import import_item

from grading.gradebook.inspect_files import SubmissionError, inspect
from grading.gradebook.nbgrader_executor import LACKS_CELLS, close_referees, not_graded, read_verdicts
from grading.gradebook.result_cache import Shelf
from grading.judge.find_lab import lab_module
from grading.judge.verdict import Verdict

SPOILT = "Cells are not what was released, in number or in form: ask for the notebook with its cells as they were."
_OF_SPOILT_CELLS = ("Inconsistent checksums", "SchemaTooOldError", "nbgrader metadata may be corrupted", LACKS_CELLS)
ROOT = Path(__file__).resolve().parents[2]


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
    """A course directory that nbgrader works on; by default this repository. `settings` override those in its file."""

    def __init__(self, root: Path = ROOT, settings: Config | None = None) -> None:
        config: Config = PyFileConfigLoader("nbgrader_config.py", path=str(ROOT / "grading")).load_config()
        config.CourseDirectory.root = str(root)
        config.CourseDirectory.db_url = f"sqlite:///{root}/grading/gradebook.db"
        config.RefereeExecutor.shelf = str(root / "grading" / "judged")
        config.merge(settings or {})
        self.root, self.db_url, self.config, self.settings = root, config.CourseDirectory.db_url, config, settings
        (root / "grading").mkdir(parents=True, exist_ok=True)
        _find_alembic()
        warnings.filterwarnings("ignore", category=SAWarning)  # from nbgrader's own queries
        self.api = _api(config)
        self.shelf, self.queue = Shelf(config.RefereeExecutor.shelf), root / "grading" / "queue"
        self.lock = self.queue / "lock"  # held by the process that grades; see `queue.alone`

    def labs(self) -> list[str]:
        return sorted(p.name for p in (self.root / "solutions").iterdir() if (p / f"{p.name}.ipynb").is_file())

    def students(self, lab: str) -> list[str]:
        return sorted(p.parent.name for p in (self.root / "grading" / "submitted").glob(f"*/{lab}"))

    def release(self, lab: str) -> None:
        """Make labs/<lab> from solutions/<lab>, without the answers."""
        _succeed(self.api.generate_assignment(lab, force=True, create=True), f"release {lab}")

    def hand_in(self, lab: str, student: str, nb: nbformat.NotebookNode) -> None:
        """Write a notebook as the student's submission, and replace an earlier one."""
        folder = self.submitted(lab, student)
        folder.mkdir(parents=True, exist_ok=True)
        nbformat.write(nb, folder / f"{lab}.ipynb")

    def autograde(self, lab: str, student: str) -> Grade:
        """Judge a submission if it has changed or must be judged again, and put its points into the gradebook."""
        return self._autograde(self.api, lab, student)

    def record(self, lab: str, student: str) -> Grade:
        """Put a judged submission's points into the gradebook. RuntimeError if it was not judged, or is unclear."""
        judged = self.shelf.get(lab, student)
        if judged and judged.unclear and self.is_graded(lab, student):  # nbgrader would delete the graded notebook
            raise RuntimeError(f"could not grade {student}'s {lab}: {not_graded(judged)}")
        return self._autograde(self._recorder, lab, student)

    @cached_property
    def _recorder(self) -> NbGraderAPI:
        only_judged = copy.deepcopy(self.config)
        only_judged.RefereeExecutor.only_judged = True
        return _api(only_judged)

    def _autograde(self, api: NbGraderAPI, lab: str, student: str) -> Grade:
        lab_module(lab)  # a lab without checks is the instructor's mistake, not the student's
        try:
            inspect(self.submitted(lab, student))
        except SubmissionError as error:
            raise RuntimeError(f"could not grade {student}'s {lab}: {error}") from None
        if self.is_graded(lab, student):
            self._check_readable(lab, student)
        _succeed(api.autograde(lab, student, force=True, create=True), f"grade {student}'s {lab}")
        self.shelf.mark_in_gradebook(lab, student)
        return self.grade(lab, student)

    def _check_readable(self, lab: str, student: str) -> None:
        """Raise RuntimeError if nbgrader could not read the submission: it would first delete the graded notebook."""
        try:
            self.sanitized(lab, student)
        except Exception as error:
            words = with_advice(f"{type(error).__name__}: {error}")
            raise RuntimeError(f"could not grade {student}'s {lab}: {words}") from None

    def sanitized(self, lab: str, student: str) -> nbformat.NotebookNode:
        """Return the notebook that nbgrader would run: locked cells are as released. Raises what nbgrader would."""
        inspect(self.submitted(lab, student))
        nb = nbformat.read(self.submitted(lab, student) / f"{lab}.ipynb", as_version=4)
        about = {"student": student, "assignment": lab, "notebook": lab, "db_url": self.db_url}
        resources = {"nbgrader": about, "metadata": {"path": str(self.submitted(lab, student))}}
        for name in self.config.Autograde.sanitize_preprocessors:
            nb, resources = import_item(name)(config=self.config).preprocess(nb, resources)
        return nb

    def copy_files(self, lab: str, student: str, to: Path) -> None:
        """Copy what nbgrader puts next to the notebook: the student's files, and over them the course's."""
        for source in (self.submitted(lab, student), self.root / "solutions" / lab):
            for file in find_all_files(str(source), [*self.config.CourseDirectory.ignore, "*.ipynb"]):
                copied = to / Path(file).relative_to(source)
                copied.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(file, copied)

    def feedback(self, lab: str, student: str | None = None) -> None:
        _succeed(self.api.generate_feedback(lab, student, force=True), f"write feedback for {lab}")

    def is_graded(self, lab: str, student: str) -> bool:
        """Return True if there are points, and the verdicts behind them."""
        with suppress(LookupError):
            return bool(self.grade(lab, student).verdicts)
        return False

    def grade(self, lab: str, student: str) -> Grade:
        """Return the grade in the gradebook. LookupError if it holds no points; 0 points are a grade."""
        with Gradebook(self.db_url) as gradebook:
            try:
                submission = gradebook.find_submission(lab, student)
            except MissingEntry:
                submission = None
            if submission is None or not has_points(submission):
                raise LookupError(f"{student} has no graded submission of {lab}: run `shardlab grade {lab}`")
            points, most = {}, {}
            for notebook in submission.notebooks:
                for g in notebook.grades:
                    points[g.cell.name], most[g.cell.name] = float(g.score), float(g.max_score)
            return Grade(student, points, most, self._verdicts(lab, student))

    def submitted(self, lab: str, student: str) -> Path:
        """Folder of what the student handed in."""
        return self.root / "grading" / "submitted" / student / lab

    def autograded(self, lab: str, student: str) -> Path:
        """Path of the notebook as it ran, with the verdicts."""
        return self.root / "grading" / "autograded" / student / lab / f"{lab}.ipynb"

    def _verdicts(self, lab: str, student: str) -> list[Verdict]:
        """Return the verdicts; [] if a grader died while it wrote the notebook, which is then recorded again."""
        try:
            return read_verdicts(nbformat.read(self.autograded(lab, student), as_version=4))
        except (FileNotFoundError, ValueError):
            return []

    def close(self) -> None:
        close_referees()


def has_points(submission: SubmittedAssignment) -> bool:
    """Return True if a submission was graded: nbgrader shows 0 for one that nobody has graded yet."""
    grades = [g for notebook in submission.notebooks for g in notebook.grades]
    return any(g.auto_score is not None or g.manual_score is not None for g in grades)


def _api(config: Config) -> NbGraderAPI:
    api = NbGraderAPI(config=config)
    api.log.setLevel(logging.ERROR)
    return api


def _find_alembic() -> None:
    """Add our Python's folder to PATH: nbgrader runs `alembic` by name, and no environment may have been activated."""
    here = os.path.dirname(sys.executable)
    if here not in os.environ["PATH"].split(os.pathsep):
        os.environ["PATH"] = here + os.pathsep + os.environ["PATH"]


def _succeed(outcome: dict, what: str) -> None:
    if not outcome["success"]:
        raise RuntimeError(f"could not {what}: {_reason((outcome.get('log') or '') + (outcome.get('error') or ''))}")


def _reason(log: str) -> str:
    """Return the cause from nbgrader's log: the text of the last exception that is not nbgrader's own summary."""
    parts = re.split(r"^ *(?:[\w.]+\.)?(\w+(?:Error|Exception)): ", log, flags=re.M)
    named = [f"{n}: {text}" for n, text in zip(parts[1::2], parts[2::2], strict=True) if n != "NbGraderException"]
    last = re.split(r"\n *(?:Traceback|\[ERROR\]|The above exception|During handling)", named[-1])[0] if named else log
    return with_advice(last.strip()[-2000:] or "nbgrader gave no reason")


def with_advice(reason: str) -> str:
    """Add what to ask the student for, if that is known."""
    return f"{reason}\n{SPOILT}" if any(words in reason for words in _OF_SPOILT_CELLS) else reason
