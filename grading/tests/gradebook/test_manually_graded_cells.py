"""A written argument waits for a person, or has 0 points if it is left as released; all that is shown says the same."""

import csv
import io
import re
import shutil
from contextlib import closing

import nbformat
import pytest
from bs4 import BeautifulSoup
from class_of_two import grade, released_class
from nbgrader.api import Gradebook
from rich.console import Console
from submissions import LAB, ROOT

from grading import instructor_commands
from grading.gradebook.manually_graded_cells import MOST_WORDS, NO_CELL, STUB, count_words, less_penalty
from grading.gradebook.nbgrader_classroom import Classroom
from grading.judge.find_lab import lab_module
from grading.judge.judge_submission import Judge, Judged
from grading.judge.verdict import Verdict
from grading.reports.class_page_and_tables import page, show
from grading.reports.class_report import class_report
from grading.reports.csv_export import export
from grading.samples.sample import read_lab

CELL = "lab2-argument"
RUBRIC = (ROOT / "solutions" / LAB / "rubric.md").read_text(encoding="utf-8")
WAITS, LEFT, BY_HAND = (
    "to be graded by hand (3 points)",
    "0 of 3 points, left as it was released",
    "2 of 3 points, graded by hand",
)
LONG = "; 163 words, of up to 150"
EXPECTED = {  # student -> what table, words and export say
    "writes": ("to grade (3)", WAITS, ""),
    "writes_below": ("to grade (3)", WAITS, ""),
    "is_long": ("to grade (3)", WAITS + LONG, ""),
    "is_graded": ("2/3", BY_HAND + LONG, "2"),
    "leaves_it": ("0/3 (empty)", LEFT, "0"),
    "empties_it": ("0/3 (empty)", LEFT, "0"),
    "deletes_it": ("to grade (3)", WAITS, ""),
    "retypes_it": ("to grade (3)", WAITS, ""),
}


def argument(nb: nbformat.NotebookNode) -> nbformat.NotebookNode:
    return next(c for c in nb.cells if c.metadata.get("nbgrader", {}).get("grade_id") == CELL)


def handed_in(student: str) -> nbformat.NotebookNode:
    nb = read_lab("labs", LAB)
    cell = argument(nb)
    if student == "deletes_it":
        nb.cells.remove(cell)
    if student == "retypes_it":
        cell.metadata.nbgrader |= {"grade": False, "solution": False, "points": 1000, "cell_type": "code"}
        cell.cell_type, cell.outputs, cell.execution_count = "code", [], None
    written = {
        "leaves_it": STUB,
        "empties_it": " \n",
        "writes_below": f"{STUB}\n\nA bucket costs 14 ms.",
        "is_graded": "word " * 163,
    }
    cell.source = (written | {"is_long": "word " * 163}).get(student, "A bucket costs 14 ms.")
    return nb


def judge(self, submission, settings) -> Judged:
    assert [*submission.checks.values()] == [*lab_module(submission.lab).CHECKS], "the argument is no check"
    assert "rubric" not in str(submission.notebook) + str([*submission.files.iterdir()]), "students' code would see it"
    return Judged(
        [], [Verdict(name, 1.0, c.points, "so") for name, c in lab_module(submission.lab).CHECKS.items()], "", 0.1
    )


@pytest.fixture(scope="module")
def classroom(tmp_path_factory):
    with released_class(tmp_path_factory, judge) as classroom:
        for student in EXPECTED:
            classroom.hand_in(LAB, student, handed_in(student))
        assert grade(classroom) == {student: ("it is new", 6, "") for student in EXPECTED}
        enter(classroom, "is_graded", 2.0, "Which cap?")
        for student in EXPECTED:
            classroom.feedback(LAB, student)
        yield classroom


def enter(classroom, student: str, points: float, comment: str) -> None:
    """Grade by hand, as formgrader does."""
    with Gradebook(classroom.db_url) as gradebook:
        found = gradebook.find_grade(CELL, LAB, LAB, student)
        found.manual_score, found.needs_manual_grade = points, False
        gradebook.find_comment(CELL, LAB, LAB, student).manual_comment = comment
        gradebook.db.commit()


def waits_in_formgrader(classroom, student: str) -> bool:
    with Gradebook(classroom.db_url) as gradebook:
        return gradebook.find_grade(CELL, LAB, LAB, student).needs_manual_grade


@pytest.fixture(scope="module")
def said(classroom):
    """What the terminal prints of the class, and the report's tables."""
    console = Console(record=True, width=300, file=io.StringIO())
    instructor_commands._grade_lab(classroom, LAB, [], console, {})
    table = console.export_text()
    show(class_report(classroom, LAB), console)
    return table, console.export_text(), page(class_report(classroom, LAB))


@pytest.mark.parametrize("student", EXPECTED)
def test_table_explanation_report_export_and_page_say_the_same(student, classroom, said):
    in_short, words, exported = EXPECTED[student]
    table, report, html = said
    row = next(line for line in table.splitlines() if re.search(rf"\b{student}\b", line))
    assert "6/15" in row and in_short in row
    assert re.search(rf"\b{student} .*{re.escape(words)} ", report)
    assert f"<td>{student}</td><td class=n>" in html and f"<td>{words}</td>" in html.split(f"<td>{student}</td>")[1]

    console = Console(record=True, width=300, file=io.StringIO())
    instructor_commands.explain(LAB, student, console, classroom.root)
    assert f"{student} has 6 of 15 points for {LAB}; written: {words}\n" in console.export_text()

    rows = {r["student"]: r for r in csv.DictReader(io.StringIO(export(classroom, "csv")))}
    assert (rows[student][f"{LAB} (15)"], rows[student][f"{LAB} written (3)"]) == ("6", exported)

    parsed = BeautifulSoup(
        (classroom.root / "grading" / "feedback" / student / LAB / f"{LAB}.html").read_text(), "html.parser"
    )
    assert parsed.h1.get_text() == f"{LAB}: 6 of 15 points; written: {words}"
    assert f"lab2.argument {words}" in parsed.find("table", class_="results").get_text(" ", strip=True)


def test_only_what_a_person_has_to_read_waits_in_formgrader(classroom):
    waiting = {student for student in EXPECTED if waits_in_formgrader(classroom, student)}
    assert waiting == {student for student, (in_short, *_) in EXPECTED.items() if in_short == "to grade (3)"}


def test_the_class_is_summed_up(classroom):
    assert "written arguments: 5 to grade, 3 graded, mean 0.7 of 3 points" in class_report(classroom, LAB).summary()


def test_a_missing_cell_is_named_where_it_is_graded(classroom):
    assert argument(nbformat.read(classroom.autograded(LAB, "deletes_it"), as_version=4)).source == NO_CELL


def test_the_rubric_stands_above_the_argument_in_formgrader_and_not_on_the_page(classroom):
    nb = nbformat.read(classroom.autograded(LAB, "is_long"), as_version=4)
    above = nb.cells[nb.cells.index(argument(nb)) - 1]
    assert above.source == f"{RUBRIC}\n163 words, of up to 150."
    html = (classroom.root / "grading" / "feedback" / "is_long" / LAB / f"{LAB}.html").read_text()
    assert "typical wrong answer" in above.source and "typical wrong answer" not in html


def test_points_and_comment_entered_by_hand_survive_another_grading(classroom):
    outcome = grade(classroom, {"again": True})
    assert outcome["is_graded"] == ("that was asked for", 6, "")
    (found,) = classroom.grade(LAB, "is_graded").written
    assert (found.text, waits_in_formgrader(classroom, "is_graded")) == (BY_HAND + LONG, True)  # to look at it again
    assert "Which cap?" in classroom.feedback(LAB, "is_graded").read_text()


def test_a_lab_without_an_argument_has_no_column_for_it(tmp_path, monkeypatch):
    monkeypatch.setattr(Judge, "_judge", judge)
    shutil.copytree(ROOT / "solutions" / LAB, tmp_path / "solutions" / LAB)
    file = tmp_path / "solutions" / LAB / f"{LAB}.ipynb"
    nb = nbformat.read(file, as_version=4)
    nb.cells.remove(argument(nb))
    nbformat.write(nb, file)
    with closing(Classroom(tmp_path)) as classroom:
        classroom.release(LAB)
        classroom.hand_in(LAB, "ada", nb)
        console = Console(record=True, width=300, file=io.StringIO())
        assert instructor_commands._grade_lab(classroom, LAB, [], console, {})
        report = class_report(classroom, LAB)
        show(report, console)
        texts = (
            console.export_text(),
            page(report),
            export(classroom, "csv"),
            classroom.feedback(LAB, "ada").read_text(),
        )
    assert not [text for text in texts if "ritten" in text.replace("rewritten", "")]


def test_words_are_what_has_letters_or_digits():
    assert count_words(f"{STUB}\n\nA bucket (34 MB) costs `14` ms - $2(N-1)$ latencies; | [1, 3] |") == 11
    assert count_words(STUB) == count_words("** -- |---| $$") == 0
    assert count_words("word " * MOST_WORDS) == MOST_WORDS


@pytest.mark.parametrize(
    ("penalty", "left"), [(0, (15, 2)), (4, (11, 2)), (15, (0, 2)), (16, (0, 1)), (17, (0, 0)), (20, (0, 0))]
)
def test_a_late_penalty_takes_points_of_checks_first(penalty, left):
    assert less_penalty(15, 2, penalty) == left
