"""A class through the queue: what is unchanged stays, what was noisy comes back, and a kill costs nothing."""

import shutil
from contextlib import closing
from dataclasses import replace

import pytest
from class_of_two import grade, hand_in
from nbgrader.api import Gradebook
from submissions import LAB
from traitlets.config import Config

from grading.gradebook.grade_class import grade_all
from grading.gradebook.nbgrader_classroom import Classroom
from grading.gradebook.queue import alone
from grading.judge.judge_submission import Judge
from grading.samples.sample import read_lab


def test_only_what_changed_is_judged_again(classroom, judge):
    assert grade(classroom) == {"ada": ("it is new", 6, ""), "bob": ("it is new", 6, "")}
    judge.points = 2.0
    hand_in(classroom, "bob", "second")
    assert grade(classroom) == {"ada": ("", 6, ""), "bob": ("the submission changed", 12, "")}
    assert len(judge.seen) == 3


def test_a_file_beside_the_notebook_counts_and_is_there(classroom, judge):
    grade(classroom)
    (classroom.submitted(LAB, "ada") / "data").mkdir()
    (classroom.submitted(LAB, "ada") / "data" / "words.txt").write_text("words")
    (classroom.submitted(LAB, "ada") / "timestamp.txt").write_text("2026-11-22 10:00:00 UTC")
    assert grade(classroom)["ada"][0] == "the submission changed"
    assert judge.seen[-1] == ["data", "timestamp.txt"]
    assert grade(classroom)["ada"][0] == ""


def test_some_settings_of_the_judging_and_another_grader_are_reasons_other_settings_are_none(
    classroom, judge, monkeypatch
):
    shutil.rmtree(classroom.submitted(LAB, "bob").parent)
    grade(classroom)
    n_judged = 1
    for settings, why in (
        ({"retries": 5}, ""),
        ({"again": True}, "that was asked for"),
        ({"false_fail": 0.01}, "the lab changed"),
    ):
        n_judged += bool(why)
        assert grade(classroom, settings)["ada"][0] == why
        assert len(judge.seen) == n_judged
    grade(classroom)
    monkeypatch.setattr("grading.gradebook.result_cache.grader", lambda: "another")
    monkeypatch.setattr("grading.gradebook.worker.grader", lambda: "another")
    assert grade(classroom)["ada"] == ("the grader changed", 6, "")


def test_what_noise_hid_comes_back_and_the_old_grade_stays(classroom, judge):
    grade(classroom)
    hand_in(classroom, "bob", "second")
    (classroom.submitted(LAB, "bob") / "timestamp.txt").write_text("2026-11-22 16:11:00 UTC")
    judge.noisy = True
    why, total, problem = grade(classroom)["bob"]
    assert (why, total) == ("the submission changed", None)
    assert "grade again on a quieter machine" in problem
    assert classroom.grade(LAB, "bob").total == 6
    with Gradebook(classroom.db_url) as gradebook:
        assert gradebook.find_submission(LAB, "bob").timestamp is None, "the old grade belongs to what came first"
    judge.noisy, judge.points = False, 2.0
    assert grade(classroom)["bob"] == ("the machine was too noisy", 12, "")


def test_a_bug_while_judging_one_stops_no_other(classroom, judge, monkeypatch):
    def ada_is_special(self, submission, settings):
        if any("# ada" in cell.source for cell in submission.notebook.cells):
            raise ZeroDivisionError("a bug of ours")
        return judge(submission, settings)

    monkeypatch.setattr(Judge, "_judge", ada_is_special)
    outcomes = grade(classroom)
    assert outcomes["ada"] == ("it is new", None, "ZeroDivisionError: a bug of ours")
    assert outcomes["bob"] == ("it is new", 6, "")


def test_a_notebook_without_its_checks_gets_them_back(classroom, judge):
    nb = read_lab("solutions", LAB)
    nb.cells = [cell for cell in nb.cells if not cell.metadata.nbgrader.grade]
    classroom.hand_in(LAB, "ada", nb)
    assert grade(classroom)["ada"] == ("it is new", 6, "")
    assert "The locked cell `lab2-plan` was missing: it was put back." in classroom.grade(LAB, "ada").repairs


def test_what_was_judged_before_a_kill_is_only_written_down_after_it(classroom, judge):
    outcomes = grade_all(classroom, LAB, ["ada", "bob"])
    next(outcomes)
    outcomes.close()  # ada's points are in the gradebook; bob's are not
    assert len(judge.seen) == 1
    assert grade(classroom) == {"ada": ("", 6, ""), "bob": ("it is new", 6, "")}
    (classroom.shelf.folder / LAB / "bob.in_gradebook").unlink()
    assert grade(classroom)["bob"] == ("its points are not in the gradebook", 6, "")
    shutil.rmtree(classroom.autograded(LAB, "ada").parent)
    assert grade(classroom)["ada"] == ("its points are not in the gradebook", 6, "")
    assert len(judge.seen) == 2


def test_what_was_judged_anew_before_a_kill_reaches_the_gradebook_after_it(classroom, judge):
    grade(classroom)
    before = classroom.shelf.get(LAB, "ada")
    better = [replace(v, points=2.0) for v in before.judged.verdicts]
    classroom.shelf.keep(LAB, "ada", before.made_of, replace(before.judged, verdicts=better))
    assert grade(classroom)["ada"] == ("its points are not in the gradebook", 12, "")


def test_a_gradebook_that_was_lost_is_written_anew(classroom, judge, released):
    grade(classroom)
    shutil.copy(released / "grading" / "gradebook.db", classroom.root / "grading" / "gradebook.db")
    assert grade(classroom)["bob"] == ("its points are not in the gradebook", 6, "")
    assert len(judge.seen) == 2


def test_a_spoilt_record_is_judged_again(classroom, judge):
    grade(classroom)
    classroom.shelf.file(LAB, "ada").write_text('{"verdicts": ')
    assert grade(classroom)["ada"] == ("it is new", 6, "")


def test_two_do_not_grade_one_course(classroom, judge):
    with alone(classroom.lock), pytest.raises(SystemExit, match=r"already \(process \d+\)"):
        grade(classroom)


def test_what_can_no_longer_be_read_takes_no_graded_notebook_away(classroom, judge):
    grade(classroom)
    before = classroom.autograded(LAB, "ada").read_bytes()
    (classroom.submitted(LAB, "ada") / f"{LAB}.ipynb").write_text('{"cells": [')
    why, points, problem = grade(classroom)["ada"]
    assert (why, points) == ("it can't be read", None)
    assert problem.startswith(
        f"could not grade ada's {LAB}: {LAB}.ipynb can't be read as a notebook (JSONDecodeError: "
    )
    assert classroom.autograded(LAB, "ada").read_bytes() == before
    assert classroom.is_graded(LAB, "ada")


def test_a_notebook_cut_short_by_a_kill_stops_nobody_and_is_written_anew(classroom, judge):
    grade(classroom)
    cut = classroom.autograded(LAB, "ada")
    cut.chmod(0o644)
    cut.write_text(cut.read_text()[:1000])
    assert set(grade(classroom)) == {"ada", "bob"}
    assert classroom.is_graded(LAB, "ada")


def test_noise_takes_away_no_verdict_that_was_clear(classroom, judge):
    shutil.rmtree(classroom.submitted(LAB, "bob").parent)
    grade(classroom)
    judge.noisy = True
    for n_judged, settings in ((2, {"again": True}), (3, {"seed": 7})):
        grade(classroom, settings)
        assert len(judge.seen) == n_judged
        assert classroom.is_graded(LAB, "ada")
        assert all(v.points == 1.0 for v in classroom.grade(LAB, "ada").verdicts)


def test_a_date_that_is_set_after_the_grading_counts_when_points_are_entered_anew(classroom, judge):
    """As grading/README.md says: nothing is judged again."""
    assert grade(classroom)["ada"] == ("it is new", 6, "")
    with Gradebook(classroom.db_url) as gradebook:
        gradebook.update_or_create_assignment(LAB, duedate="2026-11-20 23:59 UTC")
    (classroom.submitted(LAB, "ada") / "timestamp.txt").write_text("2026-11-22 16:11:00 UTC")
    (classroom.root / "grading" / "judged" / LAB / "ada.in_gradebook").unlink()
    settings = Config({"LateSubmissionPlugin": {"penalty_method": "zero"}})
    with closing(Classroom(classroom.root, settings)) as strict:
        assert grade(strict)["ada"][0] == "its points are not in the gradebook"
    with Gradebook(classroom.db_url) as gradebook:
        assert gradebook.find_submission(LAB, "ada").late_submission_penalty == 6
    assert len(judge.seen) == 2
