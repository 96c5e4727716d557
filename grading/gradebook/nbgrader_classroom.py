"""The instructor's workflow, on nbgrader's own API: release, grade, feedback, and the table of grades."""

import copy
import glob
import shutil
import sqlite3
import warnings
from contextlib import closing, suppress
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

from grading.boxes.sanitise_html_and_outputs import PLAIN_FILTERS
from grading.gradebook.convert_student_folder import (
    AutogradeOne,
    FeedbackOfOne,
    convert,
    find_alembic,
    made_beside,
    quiet_api,
    succeed,
)
from grading.gradebook.error_advice import CourseError, in_words, with_advice
from grading.gradebook.inspect_files import Stamp, SubmissionError, inspect, read_submission, released_notebook
from grading.gradebook.limited import limited
from grading.gradebook.manually_graded_cells import Written, is_written, written
from grading.gradebook.nbgrader_preprocessor import RefereeExecutor, graded_cells, read_verdicts
from grading.gradebook.normalise_notebook import repairs_of
from grading.gradebook.result_cache import Shelf
from grading.gradebook.submitted_folders import make_private, misplaced_in, students_in
from grading.judge.find_lab import lab_module
from grading.judge.judge_submission import JUDGE, Settings, Submission
from grading.judge.verdict import Verdict

CHANGED = "it was handed in again while it was graded: grade again"
_LOCKED_S = 10.0  # another program may write a moment
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
    late: float = 0.0  # points that a late penalty takes
    repairs: tuple[str, ...] = ()  # what was repaired in the notebook, one sentence each
    written: tuple[Written, ...] = ()

    @property
    def total(self) -> float:
        return total_after_penalty(sum(self.points.values()), self.late)


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
        self.root, self.db_url, self.config = root, config.CourseDirectory.db_url, config
        make_private(root / "grading")
        find_alembic()
        warnings.filterwarnings("ignore", category=SAWarning)  # from nbgrader's own queries
        self.api = quiet_api(config)
        executor = RefereeExecutor(config=config)
        self.judging: Settings = executor.settings
        self.again: bool = executor.again
        self.shelf, self.queue = Shelf(executor.shelf), root / "grading" / "queue"
        self.lock = self.queue / "lock"  # held by the process that grades; see `queue.alone`

    def labs(self) -> list[str]:
        return sorted(p.name for p in (self.root / "solutions").iterdir() if (p / f"{p.name}.ipynb").is_file())

    def students(self, lab: str, where: str = "submitted") -> list[str]:
        """Return the students with a folder of this lab in grading/submitted, or in another folder of nbgrader's."""
        return students_in(self.root / "grading" / where, lab)

    def misplaced(self, lab: str) -> dict[str, str]:
        """Return what lies in grading/submitted in another place than <student>/<lab>, and what to do."""
        return misplaced_in(self.root / "grading" / "submitted", lab)

    def release(self, lab: str) -> None:
        """Make labs/<lab> from solutions/<lab>, without the answers. If that fails, the old one stays."""
        with made_beside(self.api.coursedir, "release_directory", ".", lab):
            succeed(self.api.generate_assignment(lab, force=True, create=True), f"release {lab}")

    def ready(self, lab: str) -> None:
        """Raise CourseError unless the gradebook has this lab, and can be written."""
        not_released = CourseError(f"{lab} was not released here: run `shardlab release {lab}`, and grade again")
        file = self.root / "grading" / "gradebook.db"
        if not file.exists():
            raise not_released
        try:
            with closing(sqlite3.connect(file, timeout=_LOCKED_S)) as db:
                db.execute("BEGIN IMMEDIATE")
            with Gradebook(self.db_url) as gradebook:
                gradebook.find_notebook(lab, lab)
        except MissingEntry:
            raise not_released from None
        except sqlite3.Error as error:
            raise CourseError(with_advice(f"the gradebook can't be written: {error}")) from None

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
        last case protects the gradebook: nbgrader notes there when it came before it reads it. Later the
        executor decides by digests whether the points belong to the notebook that nbgrader reads.
        """
        kept = self.shelf.get(lab, student)
        if kept and kept.judged.unclear and self.is_graded(lab, student):  # nbgrader would note when this one came
            raise RuntimeError(f"could not grade {student}'s {lab}: {kept.judged.why_not_graded}")
        if self._inspect(lab, student) != stamp:
            raise RuntimeError(f"could not grade {student}'s {lab}: {CHANGED}")
        return self._autograde(self._recorder, lab, student)

    @cached_property
    def _recorder(self) -> NbGraderAPI:
        only_judged = copy.deepcopy(self.config)
        only_judged.RefereeExecutor.only_judged = True
        return quiet_api(only_judged)

    def autograde(self, lab: str, student: str) -> Grade:
        """Judge a submission if it has changed or must be judged again, and put its points into the gradebook."""
        lab_module(lab)  # a lab without checks is the instructor's mistake, not the student's
        self._inspect(lab, student)
        try:  # before nbgrader notes anything in the gradebook
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
        with made_beside(api.coursedir, "autograded_directory", student, lab):
            convert(AutogradeOne, api, lab, student, f"grade {student}'s {lab}")
        self.shelf.mark_in_gradebook(lab, student)
        return self.grade(lab, student)

    def enroll(self, student: str) -> None:
        """Add a student to the gradebook, as nbgrader does for every student whose submission it reads."""
        with Gradebook(self.db_url) as gradebook:
            gradebook.update_or_create_student(student)

    def sanitized(self, lab: str, student: str) -> nbformat.NotebookNode:
        """Return the notebook that nbgrader would run: locked cells are as released. The folder must be inspected."""
        nb = read_submission(self.submitted(lab, student), lab, released_notebook(self.root, lab))
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
        try:
            self._write_page(self.api, lab, student)
        except RuntimeError:  # it takes too much time or memory, or nbconvert can't show it
            self._write_page(self._plain, lab, student)
        return self.root / "grading" / "feedback" / student / lab / f"{lab}.html"

    def _write_page(self, api: NbGraderAPI, lab: str, student: str) -> None:
        with made_beside(api.coursedir, "feedback_directory", student, lab):
            limited(convert, FeedbackOfOne, api, lab, student, f"write {student}'s page for {lab}")

    @cached_property
    def _plain(self) -> NbGraderAPI:
        """nbgrader that shows a submission as plain text, which no text can make slow."""
        as_text = copy.deepcopy(self.config)
        as_text.HTMLExporter.filters |= dict.fromkeys(PLAIN_FILTERS, "grading.boxes.sanitise_html_and_outputs.as_text")
        return quiet_api(as_text)

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
            grades = [g for notebook in submission.notebooks for g in notebook.grades]
            for g in grades:
                if not is_written(g):
                    points[g.cell.name], most[g.cell.name] = float(g.score), float(g.max_score)
            ran = self._ran(lab, student)
            by_hand = tuple(written(g, ran) for g in grades if is_written(g))
            late = float(submission.late_submission_penalty or 0.0)
            return Grade(student, points, most, _verdicts(ran), late, tuple(repairs_of(ran)), by_hand)

    def submitted(self, lab: str, student: str) -> Path:
        """Folder of what the student handed in."""
        return self.root / "grading" / "submitted" / student / lab

    def autograded(self, lab: str, student: str) -> Path:
        """Path of the notebook as it ran, with the verdicts."""
        return self.root / "grading" / "autograded" / student / lab / f"{lab}.ipynb"

    def _ran(self, lab: str, student: str) -> nbformat.NotebookNode:
        """Return the notebook as it ran; an empty one if a grader died while it wrote it. It is then recorded again."""
        try:
            return nbformat.read(self.autograded(lab, student), as_version=4)
        except Exception:  # cut short, or edited
            return nbformat.v4.new_notebook()

    def close(self) -> None:
        JUDGE.close()
        make_private(self.root / "grading")  # what was made meanwhile


def _verdicts(ran: nbformat.NotebookNode) -> list[Verdict]:
    try:
        return read_verdicts(ran)
    except Exception:  # edited
        return []


def total_after_penalty(points: float, penalty: float) -> float:
    """Return what a student has for a lab, everywhere: in tables, on the page, and exported."""
    return max(0.0, points - penalty)


def has_points(submission: SubmittedAssignment) -> bool:
    """Return True if a submission was graded: nbgrader shows 0 for a submission that is not graded yet."""
    grades = [g for notebook in submission.notebooks for g in notebook.grades]
    return any(g.auto_score is not None or g.manual_score is not None for g in grades)
