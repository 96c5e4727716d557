"""Export the grades of the whole course as CSV, in the columns that a learning platform imports.

A student without a grade has an empty cell, not 0 (as `nbgrader export` writes): nobody fails because a machine was
noisy. Written arguments have a column of their own, which is empty until a person has graded them. Everybody is listed
who is in the gradebook, or has a folder in grading/submitted.
"""

import csv
import io
import unicodedata
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from nbgrader.api import Assignment, Gradebook, Student, SubmittedAssignment

from grading.gradebook.error_advice import shown
from grading.gradebook.manually_graded_cells import is_written, less_penalty, written
from grading.gradebook.nbgrader_classroom import Classroom, has_points


@dataclass(frozen=True)
class Row:
    """A student's points. `points`: lab -> points with manual ones, less a late penalty; None without a grade. A lab
    with written arguments has a second entry, "<lab> written".
    """

    student: Student
    points: dict[str, float | None]


def export(classroom: Classroom, form: str) -> str:
    """Return the table. `form`: "csv", "canvas" or "moodle". Identities come from `nbgrader db student add`."""
    if form not in FORMS:
        raise ValueError(f"no form {form!r}; there are {', '.join(FORMS)}")
    with Gradebook(classroom.db_url) as gradebook:
        most = {column: points for a in gradebook.assignments for column, points in _columns(a)}
        rows = [Row(s, _points(gradebook, s, most)) for s in gradebook.students]
        unknown = {s for lab in most for s in classroom.students(lab)} - {r.student.id for r in rows}
        rows += [Row(Student(id=shown(s)), dict.fromkeys(most)) for s in unknown]
        return as_csv(FORMS[form](most, sorted(rows, key=lambda r: r.student.id)))


def as_csv(rows: Iterable[Iterable]) -> str:
    """Return rows as CSV in which no cell is a formula to a spreadsheet: a name such as =1+1 gets a quote before it."""
    table = io.StringIO()
    csv.writer(table, lineterminator="\n").writerows([_no_formula(cell) for cell in row] for row in rows)
    return table.getvalue()


def _no_formula(cell: object) -> object:
    """Return a text cell so that it is text to a spreadsheet, which skips spaces and takes full-width signs, too."""
    is_one = isinstance(cell, str) and unicodedata.normalize("NFKC", cell).strip().startswith(("=", "+", "-", "@"))
    return f"'{cell}" if is_one else cell


def _points(gradebook: Gradebook, student: Student, labs: Iterable[str]) -> dict[str, float | None]:
    found: dict[str, float | None] = dict.fromkeys(labs)
    for s in gradebook.student_submissions(student.id):
        if has_points(s):
            checks, by_hand = _of_lab(s)
            found[s.assignment.name] = checks
            if _written(s.assignment.name) in found:
                found[_written(s.assignment.name)] = by_hand
    return found


def _of_lab(submission: SubmittedAssignment) -> tuple[float, float | None]:
    """Return points of the checks, and of written arguments: None as long as one waits for a person."""
    arguments = [written(g, None) for n in submission.notebooks for g in n.grades if is_written(g)]
    by_hand = sum(w.points or 0.0 for w in arguments)
    checks, by_hand = less_penalty(submission.score - by_hand, by_hand, submission.late_submission_penalty or 0.0)
    return checks, None if any(w.points is None for w in arguments) else by_hand


def _columns(lab: Assignment) -> Iterable[tuple[str, float]]:
    """Yield a lab's columns with their most points: of the checks, and of written arguments if it has any."""
    yield lab.name, lab.max_score - lab.max_written_score
    if lab.max_written_score:
        yield _written(lab.name), lab.max_written_score


def _written(lab: str) -> str:
    return f"{lab} written"


def _csv(most: dict[str, float], rows: list[Row]) -> Iterable[list]:
    yield ["student", "last name", "first name", "email", *(f"{lab} ({points:g})" for lab, points in most.items())]
    for r in rows:
        yield [r.student.id, r.student.last_name, r.student.first_name, r.student.email, *_shown(r, most)]


def _canvas(most: dict[str, float], rows: list[Row]) -> Iterable[list]:
    """Yield rows for Canvas, which knows a student by its own ID: `nbgrader db student add --lms-user-id`."""
    yield ["Student", "ID", "SIS User ID", "SIS Login ID", "Section", *most]
    yield ["    Points Possible", "", "", "", "", *(f"{points:g}" for points in most.values())]
    for r in rows:
        name = ", ".join(filter(None, (r.student.last_name, r.student.first_name))) or r.student.id
        yield [name, r.student.lms_user_id, "", r.student.id, "", *_shown(r, most)]


def _moodle(most: dict[str, float], rows: list[Row]) -> Iterable[list]:
    yield ["Username", "Email address", *most]
    for r in rows:
        yield [r.student.id, r.student.email, *_shown(r, most)]


def _shown(row: Row, labs: Iterable[str]) -> list[str]:
    return ["" if row.points[lab] is None else f"{row.points[lab]:g}" for lab in labs]


FORMS: dict[str, Callable[[dict, list[Row]], Iterable[list]]] = {"csv": _csv, "canvas": _canvas, "moodle": _moodle}
