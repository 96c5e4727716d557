"""What the tests of a class share: a class whose lab is released, handing in for a student, and grading everybody."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import pytest
from submissions import LAB, ROOT
from traitlets.config import Config

from grading.gradebook.grade_class import grade_all
from grading.gradebook.nbgrader_classroom import Classroom
from grading.judge.judge_submission import Judge
from grading.samples.sample import read_lab


@contextmanager
def released_class(tmp_path_factory: pytest.TempPathFactory, judge: Callable) -> Iterator[Classroom]:
    """Release LAB in a new course, where `judge(self, submission, settings)` says what each submission gets."""
    root = tmp_path_factory.mktemp("course")
    shutil.copytree(ROOT / "solutions" / LAB, root / "solutions" / LAB)
    with pytest.MonkeyPatch.context() as patch, closing(Classroom(root)) as classroom:
        patch.setattr(Judge, "_judge", judge)
        classroom.release(LAB)
        yield classroom


def hand_in(classroom, student: str, words: str) -> None:
    nb = read_lab("solutions", LAB)
    next(c for c in nb.cells if c.metadata.nbgrader.get("solution")).source += f"\n# {student}, {words}"
    classroom.hand_in(LAB, student, nb)


def grade(classroom, settings=None) -> dict[str, tuple]:
    if settings:
        with closing(Classroom(classroom.root, Config({"RefereeExecutor": settings}))) as other:
            return grade(other)
    outcomes = grade_all(classroom, LAB, classroom.students(LAB))
    return {g.student: (g.why, g.grade and g.grade.total, g.problem) for g in outcomes}
