"""A submission is taken once: what was put into the queue is judged, and only that is recorded."""

from collections import Counter
from importlib import import_module

import pytest
from class_of_two import grade, hand_in
from submissions import LAB

from grading.gradebook import inspect_files
from grading.gradebook.grade_class import grade_all
from grading.gradebook.nbgrader_classroom import CHANGED, Classroom
from grading.gradebook.queue import Queue
from grading.judge.judge_submission import Judge


def counted(monkeypatch, counts: Counter, owner, name: str, key: str) -> None:
    """Count the calls of a function from now on."""
    real = getattr(owner, name)

    def counting(*args, **kwargs):
        counts[key] += 1
        return real(*args, **kwargs)

    monkeypatch.setattr(owner, name, counting)


def test_a_submission_is_cleaned_copied_and_hashed_once_before_it_is_judged(classroom, judge, monkeypatch):
    """And once more by nbgrader, when it reads for itself what it records."""
    for name in ("a.txt", "b.txt"):
        (classroom.submitted(LAB, "ada") / name).write_text(name)
    counts, seen = Counter(), {}
    counted(monkeypatch, counts, inspect_files, "limited", "cleaned")
    counted(monkeypatch, counts, Classroom, "copy_files", "copied")
    for module in ("grade_class", "nbgrader_preprocessor"):
        counted(monkeypatch, counts, import_module(f"grading.gradebook.{module}"), "made_of", f"hashed in {module}")
    real = Judge._judge

    def looking(self, submission, settings):
        seen.update(counts, files=submission.files)
        return real(self, submission, settings)

    monkeypatch.setattr(Judge, "_judge", looking)
    (outcome,) = grade_all(classroom, LAB, ["ada"])
    assert outcome.grade.total == 6
    assert seen.pop("files") == classroom.queue / LAB / "ada.task" / "files"
    assert seen == {"cleaned": 1, "copied": 1, "hashed in grade_class": 1}
    assert counts - Counter(seen) == {"cleaned": 1, "hashed in nbgrader_preprocessor": 1}


@pytest.mark.parametrize("how", ["another notebook", "another file", "nothing that can be read"])
def test_who_hands_in_again_while_it_is_judged_keeps_the_old_grade_until_it_is_graded_again(
    how, classroom, judge, monkeypatch
):
    grade(classroom)
    before, real = classroom.autograded(LAB, "ada").read_bytes(), Judge._judge
    hand_in(classroom, "ada", "second")

    def handed_in_meanwhile(self, submission, settings):
        if how == "another notebook":
            hand_in(classroom, "ada", "third")
        elif how == "another file":
            (classroom.submitted(LAB, "ada") / "new.txt").write_text("new")
        else:
            (classroom.submitted(LAB, "ada") / f"{LAB}.ipynb").write_text("{")
        return real(self, submission, settings)

    judge.points = 2.0
    monkeypatch.setattr(Judge, "_judge", handed_in_meanwhile)
    outcomes = grade(classroom)
    assert outcomes["ada"][1] is None
    assert outcomes["ada"][2] == f"could not grade ada's {LAB}: {CHANGED}"
    assert (classroom.grade(LAB, "ada").total, classroom.autograded(LAB, "ada").read_bytes()) == (6, before)
    monkeypatch.setattr(Judge, "_judge", real)
    if how != "nothing that can be read":
        assert grade(classroom)["ada"] == ("the submission changed", 12, "")


def test_what_nbgrader_reads_must_be_what_was_judged_even_if_the_folder_looks_the_same(classroom, judge, monkeypatch):
    """The stamp is compared before nbgrader reads; a submission may be replaced in the moment between."""
    monkeypatch.setattr(Classroom, "_inspect", lambda self, lab, student: hand_in(self, student, "second") or "same")
    monkeypatch.setattr("grading.gradebook.nbgrader_classroom.inspect", lambda folder: "same")
    problem = grade(classroom)["ada"][2]
    assert "ada's lab2_ddp is not what was judged: grade again" in problem


def test_a_task_that_cannot_be_read_stops_no_other(classroom, judge):
    queue = Queue(classroom.queue, LAB)
    real = Queue.put

    def spoiling(self, student, task, **how):
        real(self, student, task, **how)
        if student == "ada":
            (self.folder / "ada.task" / "task.json").write_text("{")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Queue, "put", spoiling)
        outcomes = grade(classroom)
    assert "JSONDecodeError" in outcomes["ada"][2]
    assert outcomes["bob"][1] == 6
    assert queue.students() == []


def test_a_worker_with_another_grader_judges_nothing(classroom, judge, monkeypatch):
    monkeypatch.setattr("grading.gradebook.worker.grader", lambda: "another")
    assert "the grader's files have changed since it began" in grade(classroom)["ada"][2]
    assert judge.seen == []


def test_nothing_is_started_where_nothing_waits(classroom, judge, monkeypatch):
    grade(classroom)
    monkeypatch.setattr("grading.gradebook.grade_class.workers", None)
    assert grade(classroom) == {"ada": ("", 6, ""), "bob": ("", 6, "")}
