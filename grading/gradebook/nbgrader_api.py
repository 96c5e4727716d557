"""The instructor's workflow, on nbgrader's own API: release, grade, feedback, and the table of grades."""

import copy
import glob
import logging
import os
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
from nbgrader.converters import Autograde, BaseConverter, GenerateFeedback
from nbgrader.utils import capture_log, find_all_files, temp_attrs
from sqlalchemy.exc import SAWarning
from traitlets.config import Config, PyFileConfigLoader
from traitlets.utils.importstring import import_item

from grading.gradebook.error_advice import in_words, reason_in
from grading.gradebook.inspect_files import Stamp, SubmissionError, inspect, read_notebook
from grading.gradebook.nbgrader_executor import RefereeExecutor, graded_cells, read_verdicts
from grading.gradebook.result_cache import Shelf
from grading.gradebook.written_arguments import Written, is_written, written
from grading.judge.find_lab import lab_module
from grading.judge.judge_submission import JUDGE, Settings, Submission
from grading.judge.verdict import Verdict

CHANGED = "it was handed in again while it was graded: grade again"
INSPECTION = "grading.gradebook.inspect_files.PlainFiles"
ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Grade:
    """One submission's points by graded cell, as the gradebook has them, the verdicts behind them, and what a person
    grades: `written` is not in `points`, nor in the total.
    """

    student: str
    points: dict[str, float]
    max_points: dict[str, float]
    verdicts: list[Verdict]
    written: tuple[Written, ...] = ()

    @property
    def total(self) -> float:
        return sum(self.points.values())


class Classroom:
    """A course directory that nbgrader works on; by default this repository. `settings` override those in its file."""

    def __init__(self, root: Path = ROOT, settings: Config | None = None) -> None:
        if glob.escape(str(root)) != str(root):
            raise ValueError(f"nbgrader takes [, * and ? in a path as a pattern: the course can't be graded in {root}")
        config: Config = PyFileConfigLoader("nbgrader_config.py", path=str(ROOT / "grading")).load_config()
        config.CourseDirectory.root = str(root)
        config.CourseDirectory.db_url = f"sqlite:///{root}/grading/gradebook.db"
        config.RefereeExecutor.shelf = str(root / "grading" / "judged")
        config.merge(settings or {})
        # We inspect a folder ourselves, before nbgrader copies it.
        cleaning = [name for name in config.Autograde.sanitize_preprocessors if name != INSPECTION]
        config.Autograde.sanitize_preprocessors = cleaning
        self.root, self.db_url, self.config = root, config.CourseDirectory.db_url, config
        (root / "grading").mkdir(parents=True, exist_ok=True)
        _find_alembic()
        warnings.filterwarnings("ignore", category=SAWarning)  # from nbgrader's own queries
        self.api = _api(config)
        executor = RefereeExecutor(config=config)
        self.judging: Settings = executor.settings
        self.again: bool = executor.again
        self.shelf, self.queue = Shelf(executor.shelf), root / "grading" / "queue"
        self.lock = self.queue / "lock"  # held by the process that grades; see `queue.alone`

    def labs(self) -> list[str]:
        return sorted(p.name for p in (self.root / "solutions").iterdir() if (p / f"{p.name}.ipynb").is_file())

    def students(self, lab: str, where: str = "submitted") -> list[str]:
        """Return the students with a folder of this lab in grading/submitted, or in another folder of nbgrader's."""
        folder = self.root / "grading" / where
        return sorted(p.name for p in folder.iterdir() if _may_exist(p / lab)) if folder.is_dir() else []

    def release(self, lab: str) -> None:
        """Make labs/<lab> from solutions/<lab>, without the answers."""
        _succeed(self.api.generate_assignment(lab, force=True, create=True), f"release {lab}")

    def hand_in(self, lab: str, student: str, nb: nbformat.NotebookNode) -> None:
        """Write a notebook as the student's submission, and replace an earlier one."""
        folder = self.submitted(lab, student)
        folder.mkdir(parents=True, exist_ok=True)
        nbformat.write(nb, folder / f"{lab}.ipynb")

    def take(self, lab: str, student: str, files: Path) -> tuple[Submission, Stamp]:
        """Clean a submission as nbgrader would, and copy its files to `files`. Raises what nbgrader would.

        Return it with the stamp of what was handed in, for `record`.
        """
        stamp, nb = inspect(self.submitted(lab, student)), self.sanitized(lab, student)
        self.copy_files(lab, student, files)
        return Submission(lab, nb, graded_cells(nb), files), stamp

    def record(self, lab: str, student: str, stamp: Stamp) -> Grade:
        """Put a judged submission's points into the gradebook.

        Raises RuntimeError if it was not judged, is unclear, or has changed since it was taken with this `stamp`. The
        last case protects the gradebook: nbgrader deletes the graded notebook before it reads the submission. Later the
        executor decides by digests whether the points belong to the notebook that nbgrader reads.
        """
        kept = self.shelf.get(lab, student)
        if kept and kept.judged.unclear and self.is_graded(lab, student):  # nbgrader would delete the graded notebook
            raise RuntimeError(f"could not grade {student}'s {lab}: {kept.judged.why_not_graded}")
        if self._inspect(lab, student) != stamp:
            raise RuntimeError(f"could not grade {student}'s {lab}: {CHANGED}")
        return self._autograde(self._recorder, lab, student)

    @cached_property
    def _recorder(self) -> NbGraderAPI:
        only_judged = copy.deepcopy(self.config)
        only_judged.RefereeExecutor.only_judged = True
        return _api(only_judged)

    def autograde(self, lab: str, student: str) -> Grade:
        """Judge a submission if it has changed or must be judged again, and put its points into the gradebook."""
        lab_module(lab)  # a lab without checks is the instructor's mistake, not the student's
        self._inspect(lab, student)
        try:  # nbgrader would delete the graded notebook before it reads this one
            self.sanitized(lab, student)
        except Exception as error:
            raise RuntimeError(f"could not grade {student}'s {lab}: {in_words(error)}") from None
        return self._autograde(self.api, lab, student)

    def _inspect(self, lab: str, student: str) -> Stamp:
        try:
            return inspect(self.submitted(lab, student))
        except SubmissionError as error:
            raise RuntimeError(f"could not grade {student}'s {lab}: {error}") from None

    def _autograde(self, api: NbGraderAPI, lab: str, student: str) -> Grade:
        _convert(_Autograde, api, lab, student, f"grade {student}'s {lab}")
        self.shelf.mark_in_gradebook(lab, student)
        return self.grade(lab, student)

    def enroll(self, student: str) -> None:
        """Add a student to the gradebook, as nbgrader does for every student whose submission it reads."""
        with Gradebook(self.db_url) as gradebook:
            gradebook.update_or_create_student(student)

    def sanitized(self, lab: str, student: str) -> nbformat.NotebookNode:
        """Return the notebook that nbgrader would run: locked cells are as released. The folder must be inspected."""
        nb = read_notebook(self.submitted(lab, student), lab)
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

    def feedback(self, lab: str, student: str) -> Path:
        """Write the student's feedback page, and return its file. RuntimeError if a page can't be made."""
        _convert(_GenerateFeedback, self.api, lab, student, f"write {student}'s page for {lab}")
        return self.root / "grading" / "feedback" / student / lab / f"{lab}.html"

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
            nb, verdicts = self._as_graded(lab, student)
            grades = [g for notebook in submission.notebooks for g in notebook.grades]
            for g in grades:
                if not is_written(g):
                    points[g.cell.name], most[g.cell.name] = float(g.score), float(g.max_score)
            by_hand = tuple(written(g, nb) for g in grades if is_written(g))
            return Grade(student, points, most, verdicts, by_hand)

    def submitted(self, lab: str, student: str) -> Path:
        """Folder of what the student handed in."""
        return self.root / "grading" / "submitted" / student / lab

    def autograded(self, lab: str, student: str) -> Path:
        """Path of the notebook as it ran, with the verdicts."""
        return self.root / "grading" / "autograded" / student / lab / f"{lab}.ipynb"

    def _as_graded(self, lab: str, student: str) -> tuple[nbformat.NotebookNode | None, list[Verdict]]:
        """Return the notebook as it was graded, and its verdicts. They are None and [] if a grader died while it wrote
        the notebook, which is then recorded again.
        """
        try:
            nb = nbformat.read(self.autograded(lab, student), as_version=4)
            return nb, read_verdicts(nb)
        except Exception:  # cut short, or edited
            return None, []

    def close(self) -> None:
        JUDGE.close()


def _may_exist(path: Path) -> bool:
    """Return True also if we may not look there: grading then reports it."""
    try:
        path.lstat()
    except PermissionError:
        return True
    except OSError:
        return False
    return True


def has_points(submission: SubmittedAssignment) -> bool:
    """Return True if a submission was graded: nbgrader shows 0 for a submission that is not graded yet."""
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
        raise RuntimeError(f"could not {what}: {reason_in((outcome.get('log') or '') + (outcome.get('error') or ''))}")


class _OneStudent(BaseConverter):
    """Convert one student's folder by its path. nbgrader takes the name as a pattern, and `team [7]` as `team 7`."""

    student: str

    def init_notebooks(self) -> None:
        folder = self._format_source(self.coursedir.assignment_id, self.student)
        self.assignments = {folder: sorted(map(str, Path(folder).glob("*.ipynb")))}


class _Autograde(_OneStudent, Autograde):
    pass


class _GenerateFeedback(_OneStudent, GenerateFeedback):
    pass


def _convert(kind: type[_OneStudent], api: NbGraderAPI, lab: str, student: str, what: str) -> None:
    """Run one of nbgrader's converters as its API does. Raises RuntimeError with its reason if it fails."""
    with temp_attrs(api.coursedir, assignment_id=lab):
        converter = kind(coursedir=api.coursedir, parent=api)
        converter.student, converter.force = student, True
        _succeed(capture_log(converter), what)
