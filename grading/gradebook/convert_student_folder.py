"""Run nbgrader's converters on one student's folder. What they replace stays until they have succeeded."""

import logging
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nbgrader.apps import NbGraderAPI
from nbgrader.converters import Autograde, BaseConverter, GenerateFeedback
from nbgrader.coursedir import CourseDirectory
from nbgrader.utils import capture_log, temp_attrs
from traitlets.config import Config

from grading.gradebook.error_advice import reason_in


def quiet_api(config: Config) -> NbGraderAPI:
    api = NbGraderAPI(config=config)
    api.log.setLevel(logging.ERROR)
    return api


def find_alembic() -> None:
    """Add our Python's folder to PATH: nbgrader runs `alembic` by name, and no environment may have been activated."""
    here = os.path.dirname(sys.executable)
    if here not in os.environ["PATH"].split(os.pathsep):
        os.environ["PATH"] = here + os.pathsep + os.environ["PATH"]


def succeed(outcome: dict, what: str) -> None:
    if not outcome["success"]:
        raise RuntimeError(f"could not {what}: {reason_in((outcome.get('log') or '') + (outcome.get('error') or ''))}")


@contextmanager
def made_beside(course: CourseDirectory, step: str, student: str, lab: str) -> Iterator[None]:
    """Let nbgrader make the folder of a step beside the one that is there, and exchange the two if it succeeded.

    nbgrader itself deletes the old one first, and what it had made if it fails.
    """
    old, place = Path(course.format_path(getattr(course, step), student, lab)), Path(course.root) / "grading"
    with tempfile.TemporaryDirectory(prefix=".new-", dir=place, ignore_cleanup_errors=True) as new:
        made = Path(new) / student / lab
        with temp_attrs(course, **{step: f"grading/{Path(new).name}"}):
            yield
        old.parent.mkdir(parents=True, exist_ok=True)
        if old.exists():
            old.rename(Path(new) / ".old")
        made.rename(old)


class _OneStudent(BaseConverter):
    """Convert one student's folder by its path. nbgrader takes the name as a pattern, and `team [7]` as `team 7`."""

    student: str

    def init_notebooks(self) -> None:
        folder = self._format_source(self.coursedir.assignment_id, self.student)
        self.assignments = {folder: sorted(map(str, Path(folder).glob("*.ipynb")))}


class AutogradeOne(_OneStudent, Autograde):
    pass


class FeedbackOfOne(_OneStudent, GenerateFeedback):
    pass


def convert(kind: type[_OneStudent], api: NbGraderAPI, lab: str, student: str, what: str) -> None:
    """Run one of nbgrader's converters as its API does. Raises RuntimeError with its reason if it fails."""
    with temp_attrs(api.coursedir, assignment_id=lab):
        converter = kind(coursedir=api.coursedir, parent=api)
        converter.student, converter.force = student, True
        succeed(capture_log(converter), what)
