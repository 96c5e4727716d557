"""What the tests of a class share: hand in for a student, and grade everybody."""

from contextlib import closing

from submissions import LAB
from traitlets.config import Config

from grading.gradebook.grade_class import grade_all
from grading.gradebook.nbgrader_api import Classroom
from grading.samples import read_lab


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
