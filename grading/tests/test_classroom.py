"""The instructor's cycle through nbgrader, papermill and the referee, in a course directory of its own."""

import shutil

import nbformat
import pytest
from submissions import LAB, ROOT

from grading.classroom import Classroom
from grading.notebook import NotebookRun
from grading.samples import samples
from grading.verdict import Verdict


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


def test_a_blank_submission_gets_nothing_and_is_told_so(classroom):
    classroom.hand_in(LAB, "blank", nbformat.read(classroom.root / "labs" / LAB / f"{LAB}.ipynb", as_version=4))
    grade = classroom.autograde(LAB, "blank")
    assert grade.total == 0
    assert sum(grade.max_points.values()) == 15
    assert {v.check for v in grade.verdicts} == {name.replace("-", ".", 1) for name in grade.points}
    assert all("NotImplementedError" in v.cause for v in grade.verdicts), [v.text() for v in grade.verdicts]


def test_points_reach_the_gradebook_to_the_half_whatever_the_notebook_claims(classroom):
    nb = sample("best_cap")
    for cell in nb.cells:
        if cell.metadata.get("nbgrader", {}).get("grade_id") == "plan_buckets":
            cell.source += "\n\n\ndef check(*answer, honest=check):\n    honest(*answer)\n    return 1000\n"
    classroom.hand_in(LAB, "ada", nb)
    grade = classroom.autograde(LAB, "ada")
    assert grade.points["lab2-plan"] == 1.5
    assert grade.total == 13.5
    classroom.feedback(LAB)
    page = classroom.root / "grading" / "feedback" / "ada" / LAB / f"{LAB}.html"
    assert "times as late as need be" in page.read_text(encoding="utf-8")


def test_a_submission_that_cannot_be_judged_keeps_its_old_grade(classroom, monkeypatch):
    classroom.hand_in(LAB, "bob", sample("right"))
    monkeypatch.setattr("grading.notebook.NotebookRunner.run", lambda *_, **__: NotebookRun())
    monkeypatch.setattr("grading.referee.Referee.judge", lambda *_, **__: [Verdict("lab2.plan", 3, 3, "fine")])
    assert classroom.autograde(LAB, "bob").points["lab2-plan"] == 3
    classroom.hand_in(LAB, "bob", sample("best_cap"))
    noisy = Verdict("lab2.plan", 0, 3, "the machine was too noisy to tell", inconclusive=True)
    monkeypatch.setattr("grading.referee.Referee.judge", lambda *_, **__: [noisy])
    with pytest.raises(RuntimeError, match="too noisy"):
        classroom.autograde(LAB, "bob")
    assert classroom.grade(LAB, "bob").points["lab2-plan"] == 3


def test_a_notebook_that_cannot_be_read_is_named_and_nothing_is_lost(classroom):
    folder = classroom.root / "grading" / "submitted" / "carl" / LAB
    folder.mkdir(parents=True)
    (folder / f"{LAB}.ipynb").write_text("not a notebook")
    with pytest.raises(RuntimeError) as failure:
        classroom.autograde(LAB, "carl")
    assert str(failure.value).startswith(f"could not grade carl's {LAB}: NotJSONError: Notebook does not appear to be")
    assert "Traceback" not in str(failure.value)
    assert (folder / f"{LAB}.ipynb").read_text() == "not a notebook"


def test_a_notebook_too_large_to_be_read_is_not_opened(classroom):
    folder = classroom.root / "grading" / "submitted" / "carla" / LAB
    folder.mkdir(parents=True)
    with (folder / f"{LAB}.ipynb").open("wb") as notebook:
        notebook.truncate(21 << 20)
    with pytest.raises(RuntimeError, match="has 21 MiB, and may have 20 MiB: ask for it without its outputs"):
        classroom.autograde(LAB, "carla")


def test_cells_that_were_copied_or_changed_in_form_are_called_so(classroom):
    nb = sample("right")
    graded = next(cell for cell in nb.cells if cell.metadata.nbgrader.grade)
    graded.metadata.nbgrader |= {"solution": True, "locked": False}
    classroom.hand_in(LAB, "dora", nb)
    with pytest.raises(RuntimeError, match="ask for the notebook with its cells as they were"):
        classroom.autograde(LAB, "dora")


def test_a_notebook_without_its_checks_is_not_graded_as_if_it_had_failed_them(classroom):
    nb = sample("right")
    nb.cells = [cell for cell in nb.cells if not cell.metadata.nbgrader.grade]
    classroom.hand_in(LAB, "fay", nb)
    with pytest.raises(RuntimeError, match=r"lacks the cells of lab2\.gradients(.|\n)*with its cells as they were"):
        classroom.autograde(LAB, "fay")


def test_a_link_in_a_submission_is_not_followed(classroom):
    classroom.hand_in(LAB, "emil", sample("right"))
    (classroom.submitted(LAB, "emil") / "data.db").symlink_to("../../../gradebook.db")
    with pytest.raises(RuntimeError, match="'data.db' is a link: ask for the file itself"):
        classroom.autograde(LAB, "emil")


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
