"""One class in which everybody's folder or notebook is odd: each gets a page or a clear problem, and stops no other."""

import csv
import io
import json
import os
from html import unescape
from pathlib import Path

import pytest
from class_of_two import released_class
from nbformat.v4 import new_output
from nbgrader.apps import NbGraderAPI
from rich.console import Console
from submissions import LAB, ROOT
from traitlets.config import PyFileConfigLoader

from grading import instructor_commands
from grading.gradebook.grade_class import LONGEST_NAME, grade_all
from grading.gradebook.nbgrader_classroom import Classroom
from grading.judge.find_lab import lab_module
from grading.judge.judge_submission import Judge, Judged
from grading.judge.verdict import Verdict
from grading.reports.class_page_and_tables import show, write_page
from grading.reports.class_report import class_report
from grading.reports.csv_export import export

# test_normalise_notebook tries the same notebooks one by one, by day
pytestmark = [pytest.mark.night, pytest.mark.filterwarnings("error::nbformat.warnings.DuplicateCellId")]
RELEASED = json.loads((ROOT / "solutions" / LAB / f"{LAB}.ipynb").read_text())
OTHER_LAB = json.loads((ROOT / "solutions" / "lab1_memory" / "lab1_memory.ipynb").read_text())
TEXT, CODE = (next(i for i, c in enumerate(RELEASED["cells"]) if c["cell_type"] == t) for t in ("markdown", "code"))
ANSWER = next(i for i, c in enumerate(RELEASED["cells"]) if c["metadata"].get("nbgrader", {}).get("solution"))
GRADED = next(i for i, c in enumerate(RELEASED["cells"]) if c["metadata"].get("nbgrader", {}).get("grade"))

NAMES = ["team 7", "team [7]", " ada", "ada", "*", "{student_id}", "[red]", "a'b\"c", "<b>", "100% ünï", ".hidden"]
NAMES += ["a\\b", "log", "x" * LONGEST_NAME]
UNUSABLE = {  # a folder's name -> what is said of it
    "a\nb": "the name of the student's folder cannot be shown: rename it",
    os.fsdecode(b"\xff\xfe"): "the name of the student's folder cannot be shown: rename it",
    "y" * (LONGEST_NAME + 1): "the name of the student's folder is too long: rename it",
}


def at(*path):
    """A change of the notebook: at(..., value) puts a value at a path of keys."""
    *keys, last, value = path

    def change(nb: dict) -> None:
        place = nb
        for key in keys:
            place = place[key]
        place[last] = value

    return change


def of_all_cells(**values):
    return lambda nb: [cell.update(values) for cell in nb["cells"]]


def own(kind: str, source: str) -> dict:
    """A cell of the student's own."""
    return {"cell_type": kind, "id": "own", "metadata": {}, "source": source}


PAGES = {  # who has odd metadata -> the change; each must get points and a page
    "metadata of a number": at("metadata", 3),
    "no kernel": lambda nb: nb["metadata"].pop("kernelspec", None),
    "kernel of a number": at("metadata", "kernelspec", {"name": 3, "display_name": None}),
    "language of no name": at("metadata", "language_info", {"name": None, "pygments_lexer": 3}),
    "widgets of a number": lambda nb: nb["metadata"].update(widgets=3, language=3),
    "widgets of no state": at("metadata", "widgets", {"application/vnd.jupyter.widget-state+json": 3}),
    "title of a number": at("metadata", "title", 3),
    "half a title": at("metadata", "title", "half of \ud83d"),
    "no name": at("cells", CODE, "metadata", "name", None),
    "tags of text": at("cells", CODE, "metadata", "tags", "parameters"),
    "tags of numbers": at("cells", CODE, "metadata", "tags", [3, None, "half \ud83d"]),
    "tags that no notebook may have": at("cells", CODE, "metadata", "tags", ["a", "a", "b,c", ""]),
    "more of nbgrader's": at("cells", GRADED, "metadata", "nbgrader", "comment", ["half of \ud83d"]),
    "own nbgrader": at("cells", TEXT, "metadata", "nbgrader", {"a": 1}),
    "points": at("cells", GRADED, "metadata", "nbgrader", "points", float("nan")),
    "null ids": of_all_cells(id=None),
    "equal ids": of_all_cells(id="same"),
    "no picture": lambda nb: nb["cells"][TEXT].update(attachments={"a.png": {"image/png": 3}}),
    "counts": at("cells", CODE, "execution_count", "many"),
    "raw": lambda nb: nb["cells"].append({"cell_type": "raw", "id": "r", "source": "x", "metadata": {"format": 3}}),
    "NUL": at("cells", CODE, "source", "x = '\0'"),
    "a metadata of text": at("cells", CODE, "metadata", "x"),
}
REPAIRED = {  # -> what the student and the instructor read; each gets points and a page
    "half": (at("cells", TEXT, "source", "half of \ud83d"), "The locked cell `intro` is not as it was released"),
    "half of its own": (lambda nb: nb["cells"].append(own("markdown", "\ud83d")), "half of a character"),
    "check of text": (at("cells", GRADED, "metadata", "nbgrader", "yes"), ""),
    "points of text": (at("cells", GRADED, "metadata", "nbgrader", "points", "all"), ""),
    "id of a list": (at("cells", GRADED, "metadata", "nbgrader", "grade_id", [1]), ""),
    "form": (at("cells", GRADED, "metadata", "nbgrader", "schema_version", 99), ""),
    "no check": (lambda nb: nb["cells"].pop(GRADED), "was missing: it was put back"),
    "check twice": (lambda nb: nb["cells"].append(nb["cells"][GRADED]), "was there 2 times: the last one counts"),
    "answer twice": (lambda nb: nb["cells"].append(nb["cells"][ANSWER]), "the last one that was filled in counts"),
    "no imports": (lambda nb: nb["cells"].pop(CODE + 1), "The locked cell `imports` was missing: it was put back"),
    "lost picture": (lambda nb: nb["cells"].append(own("markdown", "![](attachment:a.png)")), "is not in the file"),
    "long link": (lambda nb: nb["cells"].append(own("markdown", "[a](" * 40_000)), ""),
    "window": (lambda nb: nb["cells"].append(own("code", "%matplotlib widget")), "was set to `inline`"),
}
PROBLEMS = {  # -> what the instructor reads
    "cells of text": (at("cells", "all points"), "lab2_ddp.ipynb has no list of cells"),
    "cell of text": (at("cells", TEXT, "all points"), "cell 1 is no cell of a notebook"),
    "source": (at("cells", TEXT, "source", 3), "cell 1 is no cell of a notebook"),
    "kind": (at("cells", TEXT, "cell_type", "essay"), "cell 1 is no cell of a notebook"),
    "another lab's": (lambda nb: nb.update(OTHER_LAB), "has no task and no check of lab2_ddp: ask for the notebook of"),
    "many cells": (lambda nb: nb["cells"].extend([own("code", "")] * 1000), "cells, and may have 1,000: ask for it"),
    "long": (lambda nb: nb["cells"].append(own("code", "x" * (1 << 19))), "characters, and may have 524,288: ask for"),
}
WHOLE = json.dumps(RELEASED)
BLANK = (ROOT / "labs" / LAB / f"{LAB}.ipynb").read_text()
MERGE = "{\n<<<<<<< HEAD\n =======\n>>>>>>> b\n}"
ENCODED = {  # files -> what the student and the instructor read; each gets points and a page
    "mark": ({f"{LAB}.ipynb": "\ufeff" + WHOLE}, "encoding is utf-8-sig"),
    "mark and CRLF": ({f"{LAB}.ipynb": "\ufeff" + WHOLE.replace("\\n", "\\r\\n")}, "Lines ended as on Windows"),
    "two bytes": ({f"{LAB}.ipynb": WHOLE.encode("utf-16")}, "encoding is utf-16"),
    "helper": ({f"{LAB}.ipynb": WHOLE, "helper.py": "x = 1"}, "'helper.py' beside the notebook is not used"),
}
FILES = {  # files -> what the instructor reads
    "renamed": ({"lab2 (1).ipynb": WHOLE}, "there is no lab2_ddp.ipynb, but there is 'lab2 (1).ipynb': if that is"),
    "mine": ({"my_lab2.ipynb": WHOLE, "old.ipynb": WHOLE}, "'my_lab2.ipynb', 'old.ipynb': move the one that is"),
    "below": ({f"in/{LAB}.ipynb": WHOLE}, f"there is 'in/{LAB}.ipynb': if that is the submission, move it to"),
    "capitals": ({"LAB2_DDP.IPYNB": WHOLE}, "there is 'LAB2_DDP.IPYNB'"),
    "text": ({f"{LAB}.ipynb.txt": WHOLE}, f"there is '{LAB}.ipynb.txt'"),
    "nothing": ({"notes.txt": "x"}, "there is no lab2_ddp.ipynb, and no other notebook"),
    "copy": ({f"{LAB}.ipynb": BLANK, f"{LAB}-Copy1.ipynb": WHOLE}, f"was filled in in {LAB}.ipynb, but there is"),
    "zip": ({f"{LAB}.zip": b"PK"}, f"there is '{LAB}.zip'"),
    "zip of its name": ({f"{LAB}.ipynb": b"PK\3\4"}, "is a zip archive, and no notebook"),
    "empty": ({f"{LAB}.ipynb": ""}, "is empty: ask for"),
    "page": ({f"{LAB}.ipynb": "<!DOCTYPE html><title>Log in</title>"}, "is a page of a website"),
    "merge": ({f"{LAB}.ipynb": MERGE}, "has the marks of a merge conflict of git"),
    "half a file": ({f"{LAB}.ipynb": WHOLE[:2000]}, "can't be read as a notebook"),
    "list": ({f"{LAB}.ipynb": "[1]"}, "can't be read as a notebook"),
    "deep": ({f"{LAB}.ipynb": "[" * 100_000}, "can't be read as a notebook"),
    "yesterday": ({f"{LAB}.ipynb": WHOLE, "timestamp.txt": "yesterday"}, "'yesterday', which is no time such as"),
}


def judge(self, submission, settings) -> Judged:
    """In the place of what takes minutes: who is in brackets has more points."""
    points = 2.0 if "# of team [7]" in str(submission.notebook) else 1.0
    verdicts = [Verdict(name, points, check.points, "so") for name, check in lab_module(LAB).CHECKS.items()]
    outputs = [[new_output("stream", text="x")] if c.cell_type == "code" else [] for c in submission.notebook.cells]
    return Judged([{"outputs": o, "execution_count": 1} for o in outputs], verdicts, "", 1.0)


def hand_in(folder: Path, files: dict[str, str | bytes]) -> None:
    for name, text in files.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text if isinstance(text, bytes) else text.encode())


def changed(change=lambda nb: None) -> str:
    nb = json.loads(WHOLE)
    change(nb)
    return json.dumps(nb)


def by(student: str) -> str:
    return changed(lambda nb: nb["cells"][ANSWER].update(source=f"# of {ascii(student)[1:-1]}"))


@pytest.fixture(scope="module")
def graded(tmp_path_factory):
    """The course, the outcomes, and the problems with pages."""
    with released_class(tmp_path_factory, judge) as classroom:
        for student in (*NAMES, *UNUSABLE):
            own = {f"{LAB}.ipynb": by(student), "own.txt": "x", "own.py": "x"}
            hand_in(classroom.submitted(LAB, student), own)
        for student, change in (PAGES | {s: c for s, (c, _) in PROBLEMS.items()}).items():
            hand_in(classroom.submitted(LAB, student), {f"{LAB}.ipynb": changed(change)})
        for student, (change, _) in REPAIRED.items():
            hand_in(classroom.submitted(LAB, student), {f"{LAB}.ipynb": changed(change)})
        for student, (files, _) in (FILES | ENCODED).items():
            hand_in(classroom.submitted(LAB, student), files)
        (classroom.root / "grading" / "submitted" / "a file").write_text("")
        outcomes = {g.student: g for g in grade_all(classroom, LAB, classroom.students(LAB))}
        yield classroom, outcomes, dict(instructor_commands._feedback(classroom, LAB))


def test_everybody_has_an_outcome(graded):
    assert set(graded[1]) == {*NAMES, *UNUSABLE, *PAGES, *REPAIRED, *ENCODED, *PROBLEMS, *FILES}


@pytest.mark.parametrize("student", NAMES)
def test_a_folder_is_a_student_whatever_its_name(student, graded):
    classroom, outcomes, without_page = graded
    assert outcomes[student].problem == ""
    assert outcomes[student].grade.total == (12 if student == "team [7]" else 6)
    ran = json.loads(classroom.autograded(LAB, student).read_text(encoding="utf-8"))
    assert "".join(ran["cells"][ANSWER]["source"]) == f"# of {ascii(student)[1:-1]}"
    assert [p.name for p in sorted(classroom.autograded(LAB, student).parent.iterdir())] == [f"{LAB}.ipynb", "own.txt"]
    assert student not in without_page
    assert (classroom.root / "grading" / "feedback" / student / LAB / f"{LAB}.html").stat().st_size


@pytest.mark.parametrize("student", UNUSABLE, ids=ascii)
def test_a_name_that_no_file_or_page_can_hold_is_told(student, graded):
    assert UNUSABLE[student] in graded[1][student].problem


@pytest.mark.parametrize("student", PAGES)
def test_odd_metadata_cost_no_points_and_no_page(student, graded):
    _, outcomes, without_page = graded
    assert (outcomes[student].problem, outcomes[student].grade and outcomes[student].grade.total) == ("", 6)
    assert student not in without_page, without_page[student]


@pytest.mark.parametrize("student", [*REPAIRED, *ENCODED])
def test_what_can_be_repaired_is_graded_and_told(student, graded):
    classroom, outcomes, without_page = graded
    assert (outcomes[student].problem, outcomes[student].grade and outcomes[student].grade.total) == ("", 6)
    assert student not in without_page, without_page[student]
    sentence = (REPAIRED | ENCODED)[student][1]
    assert sentence in " ".join(outcomes[student].grade.repairs)
    page = (classroom.root / "grading" / "feedback" / student / LAB / f"{LAB}.html").read_text(encoding="utf-8")
    assert sentence in unescape(page)


def test_the_file_that_was_handed_in_stays_as_it_is(graded):
    file = graded[0].submitted(LAB, "two bytes") / f"{LAB}.ipynb"
    assert file.read_bytes() == ENCODED["two bytes"][0][file.name]


@pytest.mark.parametrize("student", [*PROBLEMS, *FILES])
def test_what_is_no_notebook_is_told_in_words(student, graded):
    problem = graded[1][student].problem
    assert (PROBLEMS | FILES)[student][1] in problem
    assert "Traceback" not in problem and "generate_assignment" not in problem
    assert "ask for" in problem or "grade again" in problem or "correct it" in problem


def test_what_the_instructor_reads_of_the_class_is_written_for_all(graded, tmp_path):
    classroom, outcomes, without_page = graded
    assert without_page == {}
    report, console = class_report(classroom, LAB), Console(file=io.StringIO(), width=200)
    show(report, console)
    write_page(report, tmp_path / "page.html")
    n_graded = sum(outcome.grade is not None for outcome in outcomes.values())
    assert (len(report.grades), len(report.not_graded)) == (n_graded, len(outcomes) - n_graded)
    table = {row["student"]: row[f"{LAB} (15)"] for row in csv.DictReader(io.StringIO(export(classroom, "csv")))}
    assert {s for s, points in table.items() if points} == {s for s, outcome in outcomes.items() if outcome.grade}
    assert {s for s in (*PROBLEMS, *FILES) if table[s] == ""} == {*PROBLEMS, *FILES}


def test_the_terminal_shows_names_that_look_like_markup(graded, monkeypatch):
    classroom, console = graded[0], Console(file=io.StringIO(), width=400, record=True)
    assert not instructor_commands._grade_lab(
        classroom, LAB, ["[red]", "team [7]", "renamed", "a\nb", "[nobody]"], console, {}
    )
    said = console.export_text()
    for words in (
        "[red]",
        "team [7]",
        "renamed has no new grade: could not grade renamed's",
        "from [nobody]: nothing",
    ):
        assert words in said
    assert r"'a\nb' has no new grade" in said


def test_a_page_that_cannot_be_written_is_told_and_the_others_are_written(graded, monkeypatch):
    classroom, console = graded[0], Console(file=io.StringIO(), width=400, record=True)
    feedback = Classroom.feedback

    def but_one(self, lab, student):
        if student == "[red]":
            raise TypeError("a bug of ours")
        return student if student != "ada" else feedback(self, lab, student)

    page = classroom.root / "grading" / "feedback" / "ada" / LAB / f"{LAB}.html"
    page.unlink()
    monkeypatch.setattr(Classroom, "feedback", but_one)
    monkeypatch.setattr(instructor_commands, "Classroom", lambda: classroom)
    assert not instructor_commands.write_feedback(LAB, console)
    assert page.exists()
    assert "[red] has no page: a bug of ours" in console.export_text()


def test_nbgrader_by_itself_reads_odd_notebooks_too(graded, monkeypatch):
    """As from its command line or formgrader, where nothing has read the notebook before."""
    classroom, config = graded[0], PyFileConfigLoader("nbgrader_config.py", path=str(ROOT / "grading")).load_config()
    config.CourseDirectory.merge(classroom.config.CourseDirectory)
    config.RefereeExecutor.shelf = str(classroom.root / "grading" / "judged by itself")
    monkeypatch.setattr(Judge, "_judge", judge)
    api = NbGraderAPI(config=config)
    for student in ("widgets of a number", "title of a number", "mark and CRLF", "check twice"):
        outcome = api.autograde(LAB, student)
        assert outcome["success"], outcome
        assert api.generate_feedback(LAB, student)["success"]
