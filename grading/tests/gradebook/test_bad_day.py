"""A bad day: what goes wrong around the grader costs nobody's work, and one line says what to do."""

import errno
import io
import os
import shutil
import sqlite3
from contextlib import closing

import nbformat
import pytest
from class_of_two import grade, hand_in
from rich.console import Console
from sqlalchemy.exc import OperationalError
from submissions import LAB, ROOT

from grading import instructor_commands
from grading.gradebook import convert_student_folder, nbgrader_classroom
from grading.gradebook.error_advice import FULL, LOCKED, CourseError, with_advice
from grading.gradebook.grade_class import grade_all
from grading.gradebook.nbgrader_classroom import Classroom
from grading.judge.judge_answers import UNREADABLE
from grading.reports.class_report import class_report


def said_by_grade(classroom, **how) -> tuple[bool, str]:
    """Whether `shardlab grade` succeeded, and what it printed."""
    console = Console(file=io.StringIO(), width=300, record=True)
    return instructor_commands._grade_lab(classroom, LAB, [], console, how), console.export_text()


def text_of(folder) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_release_that_fails_leaves_what_was_released(classroom, judge, monkeypatch):
    grade(classroom)
    before, source = text_of(classroom.root / "labs"), classroom.root / "solutions" / LAB / f"{LAB}.ipynb"
    nb = nbformat.read(source, as_version=4)
    more = nbformat.from_dict(nb.cells[-1])
    more.metadata.nbgrader.grade_id, more.id = "more", "more"
    nb.cells.append(more)
    nbformat.write(nb, source)
    console = Console(file=io.StringIO(), width=400, record=True)
    monkeypatch.setattr(instructor_commands, "Classroom", lambda: Classroom(classroom.root))
    assert not instructor_commands.release_labs(LAB, console)
    said = console.export_text()
    assert f"labs/{LAB} stays as it was: could not release {LAB}: submissions were graded with the cells" in said
    assert len(said.splitlines()) == 1
    assert text_of(classroom.root / "labs") == before
    assert not list((classroom.root / "grading").glob(".new-*"))


@pytest.mark.parametrize("kind", ["autograded", "feedback"])
def test_what_nbgrader_fails_to_write_leaves_what_was_there(kind, classroom, judge, monkeypatch):
    grade(classroom)
    classroom.feedback(LAB, "ada")
    before = text_of(classroom.root / "grading" / kind)
    hand_in(classroom, "ada", "second")

    def failing(self, *_):
        raise OSError(errno.EIO, "Input/output error")

    of = convert_student_folder.AutogradeOne if kind == "autograded" else convert_student_folder.FeedbackOfOne
    monkeypatch.setattr(of, "write_single_notebook", failing)
    if kind == "autograded":
        assert "Input/output error" in grade(classroom)["ada"][2]
    else:
        with pytest.raises(RuntimeError, match="Input/output error"):
            classroom.feedback(LAB, "ada")
    assert text_of(classroom.root / "grading" / kind) == before


def test_a_reply_that_no_judge_can_read_is_0_and_the_instructor_is_told_to_look(classroom, judge):
    judge.points, judge.cause = 0.0, f"{UNREADABLE}: an instructor has to look."
    succeeded, said = said_by_grade(classroom)
    assert succeeded, "everybody has a grade"
    assert f"ada, lab2.memory: {UNREADABLE}: look at what it does" in said
    assert grade(classroom)["ada"][1] == 0


def test_a_gradebook_that_another_program_holds_is_told_at_once(classroom, judge, monkeypatch):
    monkeypatch.setattr(nbgrader_classroom, "_LOCKED_S", 0.1)
    with closing(sqlite3.connect(classroom.root / "grading" / "gradebook.db")) as other:
        other.execute("BEGIN EXCLUSIVE")
        succeeded, said = said_by_grade(classroom)
        assert not succeeded
        assert said.count(LOCKED) == 1, "and not once for each student, after a wait"
        assert "Traceback" not in said
    assert grade(classroom)["ada"][1] == 6


@pytest.mark.parametrize("command", ["explain", "export_grades"])
def test_a_table_without_a_gradebook_is_no_traceback(command, classroom, judge, monkeypatch):
    monkeypatch.setattr(instructor_commands, "Classroom", lambda *_: Classroom(classroom.root))
    monkeypatch.setattr("grading.reports.csv_export.Gradebook", _held)
    monkeypatch.setattr(nbgrader_classroom, "Gradebook", _held)
    arguments = {"explain": (LAB, "ada", Console(file=io.StringIO())), "export_grades": ("csv",)}[command]
    with pytest.raises(SystemExit, match="another program holds"):
        getattr(instructor_commands, command)(*arguments)


def _held(*_):
    raise OperationalError("SELECT", {}, sqlite3.OperationalError("database is locked"))


def test_a_full_disk_is_told_in_one_line_and_grading_goes_on_later(classroom, judge, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        for module in ("result_cache", "queue"):
            patch.setattr(f"grading.gradebook.{module}.write_whole", full)
        succeeded, said = said_by_grade(classroom)
    assert not succeeded
    assert said.count(FULL) == 1
    assert grade(classroom) == {"ada": ("it is new", 6, ""), "bob": ("it is new", 6, "")}


LOGS = {
    "sqlalchemy.exc.OperationalError: (sqlite3.OperationalError) database is locked": LOCKED,
    "sqlite3.OperationalError: database or disk is full": FULL,
    "OSError: [Errno 28] No space left on device: 'x'": FULL,
}


@pytest.mark.parametrize("log", LOGS)
def test_what_libraries_say_of_the_machine_becomes_what_to_do(log):
    assert with_advice(log) == LOGS[log]


def test_a_second_call_says_that_nothing_is_new(classroom, judge):
    (classroom.submitted(LAB, "bob") / f"{LAB}.ipynb").write_text("")
    succeeded, said = said_by_grade(classroom)
    assert (succeeded, "nothing is new" in said, "bob has no new grade" in said) == (False, False, True)
    succeeded, said = said_by_grade(classroom)
    assert (succeeded, "nothing is new" in said, "bob has no new grade" in said) == (False, True, True)
    hand_in(classroom, "bob", "second")
    succeeded, said = said_by_grade(classroom)
    assert (succeeded, "nothing is new" in said, "bob has no new grade" in said) == (True, False, False)


def test_the_report_says_why_somebody_has_no_grade_or_an_old_one(classroom, judge):
    grade(classroom)
    for student in ("bob", "carl"):
        hand_in(classroom, student, "next")
        (classroom.submitted(LAB, student) / f"{LAB}.ipynb").write_text("<!doctype html>")
    grade(classroom)
    report = class_report(classroom, LAB)
    assert list(report.not_graded) == ["carl"]
    assert "is a page of a website" in report.not_graded["carl"]
    assert "what was handed in last has no grade" in " ".join(report.notes["bob"])
    hand_in(classroom, "bob", "last")
    grade(classroom)
    assert class_report(classroom, LAB).notes == {}


def test_what_lies_in_a_wrong_place_is_told(classroom, judge):
    submitted = classroom.root / "grading" / "submitted"
    for wrong in (f"{LAB}/dora", f"emil/{LAB}.ipynb", f"fred/{LAB}.zip"):
        path = submitted / wrong
        path.parent.mkdir(exist_ok=True)
        path.touch()
    succeeded, said = said_by_grade(classroom)
    assert not succeeded
    assert {"emil", "fred", LAB} == set(class_report(classroom, LAB).not_graded)
    assert f"grading/submitted/{LAB}: a student's folder comes first, <student>/{LAB}" in said
    assert f"grading/submitted/emil/{LAB}.ipynb: put it (unpacked) into emil/{LAB}/" in said
    assert f"grading/submitted/fred/{LAB}.zip: put it (unpacked) into fred/{LAB}/" in said
    assert "grading/submitted/ada" not in said


def test_nobody_else_may_read_a_class(classroom, judge):
    grade(classroom)
    classroom.feedback(LAB, "ada")
    classroom.close()
    folder = classroom.root / "grading"
    modes = {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()}
    assert modes == {
        **dict.fromkeys(("submitted", "autograded", "judged", "queue", "feedback", "report"), 0o700),
        "gradebook.db": 0o600,
    }


def test_folders_of_a_class_are_closed_before_anything_is_in_them(tmp_path):
    with closing(Classroom(tmp_path)):
        modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "grading").iterdir()}
    assert "autograded" in modes and set(modes.values()) == {0o700}


def test_a_course_in_a_folder_that_nbgrader_takes_as_a_pattern_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"nbgrader takes \[, \* and \? in a path as a pattern"):
        Classroom(tmp_path / "course [2026]")


def test_a_lab_that_was_not_released_is_told(tmp_path):
    shutil.copytree(ROOT / "solutions" / LAB, tmp_path / "solutions" / LAB)
    with closing(Classroom(tmp_path)) as classroom:
        hand_in(classroom, "ada", "first")
        with pytest.raises(CourseError, match=f"{LAB} was not released here: run `shardlab release {LAB}`"):
            list(grade_all(classroom, LAB, ["ada"]))
