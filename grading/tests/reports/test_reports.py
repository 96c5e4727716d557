"""What an instructor reads: the class's report, the reason for a grade, and tables for other systems."""

import csv
import io
import re
import shutil
from contextlib import closing
from pathlib import Path

import pytest
from class_of_two import released_class
from nbgrader.api import Gradebook
from rich.console import Console
from submissions import LAB, ROOT

from grading.gradebook.grade_class import grade_all
from grading.gradebook.nbgrader_classroom import Classroom, Grade
from grading.instructor_commands import explain
from grading.judge.find_lab import lab_module
from grading.judge.judge_submission import Judged
from grading.judge.verdict import Verdict
from grading.reports.class_page_and_tables import page, show
from grading.reports.class_report import class_report
from grading.reports.csv_export import export
from grading.reports.terminal_table_of_lab import grade_row
from grading.samples.sample import read_lab, samples

CHECKS = lab_module(LAB).CHECKS
POINTS = {"ada": 1.0, "bob": 0.5, "carl": 0.0, "dora": 1.0}  # of each check's
NOISY = "noel"


def judge(self, submission, settings) -> Judged:
    """In the place of what takes minutes: by the name in the notebook."""
    student = re.search(r"# by (\w+)", str(submission.notebook)).group(1)
    share, noisy = POINTS.get(student, 0), student == NOISY
    verdicts = [
        Verdict(
            name,
            share * c.points,
            c.points,
            f"so it is, {share} <b>",
            figures={"time": ("1 (5 pairs)", "2")},
            inconclusive=noisy,
        )
        for name, c in CHECKS.items()
    ]
    return Judged([], verdicts, "", 10 * len(student), int(student == "bob"))


@pytest.fixture(scope="module")
def classroom(tmp_path_factory):
    with released_class(tmp_path_factory, judge) as classroom:
        right, other = (next(s for s in samples(LAB) if s.name == n) for n in ("right", "right_other_style"))
        for student in (*POINTS, NOISY):
            nb = other.notebook() if student == "ada" else right.notebook()
            next(c for c in nb.cells if c.metadata.nbgrader.get("solution")).source += f"\n# by {student}"
            classroom.hand_in(LAB, student, nb)
        with Gradebook(classroom.db_url) as gradebook:
            gradebook.add_student("zoe", first_name="Zoë", last_name="Zett", email="zoe@uni.example", lms_user_id="77")
        list(grade_all(classroom, LAB, classroom.students(LAB)))
        yield classroom


def test_the_report_says_how_the_class_did(classroom):
    report = class_report(classroom, LAB)
    assert sorted(report.totals) == [0, 7.5, 15, 15]
    assert report.histogram() == [
        ("0 - 1.5", 1),
        *((f"{1.5 * i:g} - {1.5 * i + 1.5:g}", i == 5) for i in range(1, 9)),
        ("13.5 - 15", 2),
    ]
    assert [(r.full, r.part, r.none) for r in report.checks] == [(2, 1, 1)] * len(CHECKS)
    assert report.checks[0].commonest == [("so it is, … <b>", 2)]
    assert report.not_graded == {NOISY: "so it is, 0 <b>"}
    assert list(report.seconds)[:1] in (["carl"], ["dora"], ["noel"])
    assert report.judged_again == {"bob": 1}
    assert set(report.laps) == {5}
    alike = {frozenset((p.first, p.second)) for p in report.pairs}
    assert frozenset(("bob", "carl")) in alike
    assert not any("ada" in pair for pair in alike)


def test_the_page_and_the_terminal_say_the_same(classroom):
    report = class_report(classroom, LAB)
    html, console = page(report), Console(record=True, width=200, file=io.StringIO())
    show(report, console)
    text = console.export_text()
    for words in ("4 graded, 1 without a grade", "mean 9.4, median 11.25 of 15 points", "2 have all", "noel"):
        assert words in html
        assert words in text
    assert "<b>" not in html
    assert "so it is, … &lt;b&gt;" in html


@pytest.mark.night
def test_a_report_before_anybody_was_graded(tmp_path, monkeypatch):
    monkeypatch.setattr("grading.reports.class_report._alike", lambda *_: [])  # of one student, beside the references
    shutil.copytree(ROOT / "solutions" / LAB, tmp_path / "solutions" / LAB)
    with closing(Classroom(tmp_path)) as classroom:
        classroom.release(LAB)
        classroom.hand_in(LAB, "ada", read_lab("solutions", LAB))
        report = class_report(classroom, LAB)
        assert "run `shardlab grade`" in report.not_graded["ada"]
        assert "0 graded, 1 without a grade" in page(report)
        show(report, Console(file=io.StringIO()))


def test_one_grade_that_cannot_be_read_stops_no_report(classroom, monkeypatch):
    grade = Classroom.grade

    def but_one(self, lab, student):
        if student == "ada":
            raise TypeError("a bug of ours")
        return grade(self, lab, student)

    monkeypatch.setattr(Classroom, "grade", but_one)
    report = class_report(classroom, LAB)
    assert report.not_graded["ada"] == "its grade can't be read: TypeError: a bug of ours"
    assert len(report.grades) == len(POINTS) - 1


def test_a_cell_that_is_graded_by_hand_and_of_any_name_has_a_row():
    grade = Grade("[red]", {"discussion": 1.0, "lab2-plan": 0.0}, {"discussion": 2.0, "lab2-plan": 3.0}, [])
    name, _, *_, lost = grade_row(grade, LAB)
    assert (name, lost) == (r"\[red]", "discussion, plan")


def explained(classroom, student: str) -> str:
    console = Console(record=True, width=200, file=io.StringIO())
    explain(LAB, student, console, classroom.root)
    return console.export_text()


def test_a_grade_is_explained_check_by_check(classroom):
    said = explained(classroom, "bob")
    for name, check in CHECKS.items():
        assert f"PARTIAL {name}: {check.points / 2:g} of {check.points:g} points\n  so it is, 0.5 <b>" in said
    assert "bob has 7.5 of 15 points for lab2_ddp" in said
    with pytest.raises(SystemExit, match="noel has no graded submission of lab2_ddp: run `shardlab grade"):
        explained(classroom, NOISY)


def test_who_was_never_graded_has_an_empty_cell_and_not_0(classroom):
    rows = {r["student"]: r for r in csv.DictReader(io.StringIO(export(classroom, "csv")))}
    column = f"{LAB} (15)"
    assert {s: rows[s][column] for s in rows} == {
        "ada": "15",
        "bob": "7.5",
        "carl": "0",
        "dora": "15",
        NOISY: "",
        "zoe": "",
    }
    assert (rows["zoe"]["first name"], rows["zoe"]["email"]) == ("Zoë", "zoe@uni.example")


def test_platforms_get_their_columns(classroom):
    head, possible, *students = csv.reader(io.StringIO(export(classroom, "canvas")))
    assert head == ["Student", "ID", "SIS User ID", "SIS Login ID", "Section", LAB, f"{LAB} written"]
    assert possible[0].strip() == "Points Possible"
    assert possible[-2:] == ["15", "3"]
    assert ["Zett, Zoë", "77", "", "zoe", "", "", ""] in students
    moodle = list(csv.reader(io.StringIO(export(classroom, "moodle"))))
    assert moodle[0] == ["Username", "Email address", LAB, f"{LAB} written"]
    assert ["bob", "", "7.5", ""] in moodle
    with pytest.raises(ValueError, match="there are csv, canvas, moodle"):
        export(classroom, "excel")


def test_manual_points_are_exported(classroom):
    with Gradebook(classroom.db_url) as gradebook:
        gradebook.find_grade("lab2-plan", LAB, LAB, "carl").manual_score = 2.0
        gradebook.db.commit()
    assert "lab2-plan: 2 of 3 points in the gradebook, entered by hand" in explained(classroom, "carl")
    assert exported(classroom)["carl"] == "2"


@pytest.mark.parametrize(("penalty", "left"), [(4.0, 11), (15.0, 0), (99.0, 0)])
def test_a_late_penalty_takes_the_same_points_everywhere_and_is_said(penalty, left, classroom):
    with Gradebook(classroom.db_url) as gradebook:
        for notebook in gradebook.find_submission(LAB, "dora").notebooks:
            notebook.late_submission_penalty = penalty
        gradebook.db.commit()
    _, points, *_ = grade_row(classroom.grade(LAB, "dora"), LAB)
    assert f"{left}/15 (late: -{penalty:g})" in points
    said = explained(classroom, "dora")
    assert f"dora has {left} of 15 points for lab2_ddp; {penalty:g} are taken because it was late" in said
    report = class_report(classroom, LAB)
    assert left in report.totals
    assert "less points because they were late: dora" in report.summary()
    assert exported(classroom)["dora"] == str(left)
    html = classroom.feedback(LAB, "dora").read_text(encoding="utf-8")
    assert f"{LAB}: {left} of 15 points; written: " in html
    assert f"-{penalty:g} points" in html


def exported(classroom) -> dict[str, str]:
    return dict(row[::2] for row in csv.reader(io.StringIO(export(classroom, "moodle"))))


def test_who_imports_or_copies_a_reference_is_named(classroom):
    nb = read_lab("labs", LAB)
    references = Path(lab_module(LAB).__file__).with_name("on_ranks.py").read_text()
    references += f"\nfrom grading.checks.{LAB} import drills"
    next(c for c in nb.cells if c.metadata.nbgrader.get("solution")).source = references
    classroom.hand_in(LAB, "eve", nb)
    try:
        report = class_report(classroom, LAB)
    finally:
        shutil.rmtree(classroom.submitted(LAB, "eve").parent)
    assert report.borrowers == ["eve"]
    assert "code that names the graders' own: eve" in report.summary()
    assert ("eve", "the graders' own code") in {(p.first, p.second) for p in report.pairs}
