"""The instructor's cycle through nbgrader, papermill and the referee, in a course directory of its own."""

import os
import shutil
from pathlib import Path

import nbformat
import pytest
from bs4 import BeautifulSoup
from submissions import LAB, ROOT

from grading.boxes.notebook_runner_client import NotebookRun
from grading.gradebook.inspect_files import SubmissionError, inspect
from grading.gradebook.nbgrader_classroom import Classroom
from grading.judge.verdict import Verdict
from grading.samples.sample import samples


@pytest.fixture(scope="module")
def classroom(tmp_path_factory):
    root = tmp_path_factory.mktemp("course with spaces and Ümlauts")
    shutil.copytree(ROOT / "solutions", root / "solutions")
    classroom = Classroom(root)
    classroom.release(LAB)
    yield classroom
    classroom.close()


def sample(name: str) -> nbformat.NotebookNode:
    return next(s for s in samples(LAB) if s.name == name).notebook()


def only_plan(classroom, plan: str) -> nbformat.NotebookNode:
    """The lab as it was released, whose first part defines nothing that could be handed in; and this for the second."""
    nb = nbformat.read(classroom.root / "labs" / LAB / f"{LAB}.ipynb", as_version=4)
    for cell in nb.cells:
        if cell.metadata.nbgrader.grade_id == "token_ddp":
            cell.source = "launch = lambda *_, **__: None"
        if cell.metadata.nbgrader.grade_id == "plan_buckets":
            cell.source = plan or cell.source
    return nb


@pytest.mark.night
def test_a_blank_submission_gets_nothing_and_is_told_so(classroom, at_once):
    """As a whole, with its first part: test_solutions."""
    classroom.hand_in(LAB, "blank", only_plan(classroom, ""))
    grade = classroom.autograde(LAB, "blank")
    assert grade.total == 0
    assert sum(grade.max_points.values()) == 15
    assert {v.check for v in grade.verdicts} == {name.replace("-", ".", 1) for name in grade.points}
    *others, plan = grade.verdicts
    assert "NotImplementedError" in plan.cause, plan.text()
    assert all("NameError: name 'TokenDDP'" in v.cause for v in others), [v.text() for v in others]


def test_points_reach_the_gradebook_to_the_half_whatever_the_notebook_claims(classroom, at_once):
    best_cap = next(c for c in sample("best_cap").cells if c.metadata.nbgrader.grade_id == "plan_buckets").source
    nb = only_plan(classroom, best_cap + "\n\n\ndef check(*a, honest=check):\n    honest(*a)\n    return 1000\n")
    for cell in nb.cells:
        if cell.metadata.nbgrader.grade:
            cell.metadata.nbgrader.points = 1000
    classroom.hand_in(LAB, "ada", nb)
    grade = classroom.autograde(LAB, "ada")
    assert grade.points["lab2-plan"] == 1.5
    assert grade.total == 1.5
    assert sum(grade.max_points.values()) == 15
    page = classroom.feedback(LAB, "ada").read_text(encoding="utf-8")
    assert "times as late as the best" in page
    listed = BeautifulSoup(page, "html.parser").find("table", class_="results").get_text(" ", strip=True)
    assert "lab2.plan ✗ 1.5 of 3 points" in listed and "Test cell" not in page
    assert "<math" in page and "https://cdn" not in page and "<script" not in page, "formulas need no script"


def test_a_submission_that_cannot_be_judged_keeps_its_old_grade(classroom, monkeypatch):
    classroom.hand_in(LAB, "bob", sample("right"))
    monkeypatch.setattr("grading.boxes.notebook_runner_client.NotebookRunner.run", lambda *_, **__: NotebookRun())
    monkeypatch.setattr(
        "grading.judge.judge_answers.Referee.judge", lambda *_, **__: [Verdict("lab2.plan", 3, 3, "fine")]
    )
    assert classroom.autograde(LAB, "bob").points["lab2-plan"] == 3
    classroom.hand_in(LAB, "bob", sample("best_cap"))
    noisy = Verdict("lab2.plan", 0, 3, "the machine was too noisy to tell", inconclusive=True)
    monkeypatch.setattr("grading.judge.judge_answers.Referee.judge", lambda *_, **__: [noisy])
    with pytest.raises(RuntimeError, match="too noisy"):
        classroom.autograde(LAB, "bob")
    assert classroom.grade(LAB, "bob").points["lab2-plan"] == 3


def test_a_notebook_that_cannot_be_read_is_named_and_nothing_is_lost(classroom):
    folder = classroom.root / "grading" / "submitted" / "carl" / LAB
    folder.mkdir(parents=True)
    (folder / f"{LAB}.ipynb").write_text("not a notebook")
    with pytest.raises(RuntimeError) as failure:
        classroom.autograde(LAB, "carl")
    assert str(failure.value).startswith(f"could not grade carl's {LAB}: {LAB}.ipynb can't be read as")
    assert "Traceback" not in str(failure.value)
    assert (folder / f"{LAB}.ipynb").read_text() == "not a notebook"


def test_a_notebook_too_large_to_be_read_is_not_opened(classroom):
    folder = classroom.root / "grading" / "submitted" / "carla" / LAB
    folder.mkdir(parents=True)
    with (folder / f"{LAB}.ipynb").open("wb") as notebook:
        notebook.truncate(21 << 20)
    with pytest.raises(RuntimeError, match="has 21 MiB, and may have 20 MiB: ask for it without its outputs"):
        classroom.autograde(LAB, "carla")


def test_a_link_in_a_submission_is_not_followed(classroom):
    classroom.hand_in(LAB, "emil", sample("right"))
    (classroom.submitted(LAB, "emil") / "data.db").symlink_to("../../../gradebook.db")
    with pytest.raises(RuntimeError, match="'data.db' is a link: ask for the file itself"):
        classroom.autograde(LAB, "emil")


def large_files(folder) -> None:
    for i in range(3):
        with (folder / str(i)).open("wb") as file:
            file.truncate(80 << 20)


SPOILS = {
    "a link to a folder": (lambda f: (f / "more").symlink_to("../../../../solutions"), "'more' is a link: ask for"),
    "a link in a folder": (lambda f: (f / "in" / "x").symlink_to("/etc/hostname"), "'in/x' is a link: ask for"),
    "a folder of two lines": (lambda f: (f / "a\nb").mkdir(), "name that cannot be shown"),
    "a file of no letters": (lambda f: Path(os.fsdecode(bytes(f / "in") + b"/\xff\xfe")).touch(), "cannot be shown"),
    "a pipe": (lambda f: os.mkfifo(f / "in" / "data.txt"), "'in/data.txt' is no plain file"),
    "many files": (lambda f: [(f / "in" / str(i)).touch() for i in range(1000)], "there are 1001 files"),
    "many folders": (lambda f: [(f / "in" / str(i)).mkdir() for i in range(1000)], "there are 1001 folders"),
    "folders in folders": (
        lambda f: (f / "/".join("d" * 900)).mkdir(parents=True),
        "more than 30 folders in each other",
    ),
    "a time behind spaces": (
        lambda f: (f / "timestamp.txt").write_text(" " * 1000 + "yesterday"),
        "is no time such as",
    ),
    "large files": (large_files, "its files have 240 MiB, and may have 200 MiB"),
}


@pytest.mark.parametrize(("spoil", "words"), SPOILS.values(), ids=SPOILS)
def test_what_is_no_plain_file_of_a_plain_name_is_not_opened(spoil, words, tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / f"{LAB}.ipynb").write_text("{}")
    inspect(tmp_path)
    spoil(tmp_path)
    with pytest.raises(SubmissionError, match=words):
        inspect(tmp_path)


def test_a_folder_that_is_a_link_is_not_followed(classroom):
    classroom.hand_in(LAB, "emil", sample("right"))
    folder = classroom.submitted(LAB, "fred")
    folder.parent.mkdir()
    folder.symlink_to(classroom.submitted(LAB, "emil"))
    with pytest.raises(RuntimeError, match=f"'{LAB}' is a link: ask for the folder itself"):
        classroom.autograde(LAB, "fred")


def test_who_never_handed_in_is_told_how(classroom):
    with pytest.raises(LookupError, match="shardlab grade"):
        classroom.grade(LAB, "nobody")
