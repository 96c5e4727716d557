"""The judge of whole submissions: what it tells of each check, when it judges again, and that it needs no nbgrader."""

import subprocess
import sys
from dataclasses import fields
from types import SimpleNamespace

import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from submissions import LAB

from grading.boxes.notebook_runner_client import NotebookRun
from grading.gradebook.nbgrader_preprocessor import RefereeExecutor
from grading.judge.find_lab import lab_module
from grading.judge.judge_submission import Judge, Settings, Submission
from grading.judge.verdict import Verdict

CHECKS = list(lab_module(LAB).CHECKS)


def submission(tmp_path, checks=CHECKS) -> Submission:
    """One cell of text, one of code, and one for each check."""
    nb = new_notebook(cells=[new_markdown_cell("# A title"), new_code_cell("1"), *[new_code_cell("2") for _ in checks]])
    return Submission(LAB, nb, {i: name for i, name in enumerate(checks, 2)}, tmp_path)


@pytest.fixture
def judge(monkeypatch):
    """A judge whose notebook `runs` as told, and whose referee gives the next of `replies` to each check."""
    judge = Judge()
    judge.run, judge.replies, judge.asked = NotebookRun(), {}, []

    def verdicts(answers, problems, only=None):
        judge.asked.append((only, problems))
        names = [only] if only else CHECKS
        return [
            Verdict(n, 0, 3, problems[n], inconclusive=bool(judge.replies.get(n, []) and judge.replies[n].pop(0)))
            for n in names
        ]

    referee = SimpleNamespace(prepare=lambda: None, judge=verdicts, close=lambda: None)
    monkeypatch.setattr(judge, "_referee", lambda *_: referee)
    monkeypatch.setattr(judge, "_run", lambda *_: judge.run)
    return judge


def ran(*errors: str | None, count: int | None = 1) -> NotebookRun:
    """A run in which the cells with code, one after the other, raised these errors, or none."""
    made = [[new_output("error", ename="ValueError", evalue=e, traceback=[])] if e else [] for e in errors]
    nothing = {"outputs": [], "execution_count": None}
    return NotebookRun([nothing, *({"outputs": o, "execution_count": count} for o in map(list, made))])


def reasons(judge, tmp_path) -> list[str]:
    judged = judge.judge(submission(tmp_path), Settings())
    assert [v.check for v in judged.verdicts] == CHECKS
    return [v.cause.removeprefix("nothing was handed in: ") for v in judged.verdicts]


def test_each_check_is_told_why_nothing_was_handed_in(judge, tmp_path):
    assert set(reasons(judge, tmp_path)) == {"it did not call check(...)"}
    judge.run = ran(None, *[None] * len(CHECKS))
    assert set(reasons(judge, tmp_path)) == {"it did not call check(...)"}
    judge.run = ran(None, None, "own", *[None] * (len(CHECKS) - 2))
    first = "the first error in the notebook was ValueError: own"
    assert reasons(judge, tmp_path)[:3] == ["it did not call check(...)", first, "it did not call check(...)"]
    judge.run = ran("early", *["late"] * len(CHECKS))
    assert set(reasons(judge, tmp_path)) == {"the first error in the notebook was ValueError: early"}
    judge.run = ran("early", *[None] * len(CHECKS), count=None)
    assert set(reasons(judge, tmp_path)) == {"the first error in the notebook was ValueError: early"}
    judge.run = NotebookRun(problem="the notebook could not be run")
    assert set(reasons(judge, tmp_path)) == {"the notebook could not be run"}


def test_only_what_noise_hid_is_judged_again_and_so_often_as_is_set(judge, tmp_path):
    judge.replies = {CHECKS[1]: [True, True, False], CHECKS[2]: [True] * 9}
    judged = judge.judge(submission(tmp_path), Settings(retries=2))
    assert [only for only, _ in judge.asked] == [None, CHECKS[1], CHECKS[2], CHECKS[1], CHECKS[2]]
    assert ([v.check for v in judged.unclear], judged.judged_again) == ([CHECKS[2]], 4)
    assert judged.why_not_graded.startswith("not graded; grade again on a quieter machine:\nINCONCLUSIVE")


def test_a_notebook_without_a_check_is_not_run(judge, tmp_path):
    with pytest.raises(RuntimeError, match=f"the notebook lacks the cells of {CHECKS[0]}$"):
        judge.judge(submission(tmp_path, CHECKS[1:]), Settings())
    assert judge.asked == []


def test_what_the_instructor_can_set_is_what_the_judge_takes():
    executor = RefereeExecutor()
    assert executor.settings == Settings()
    assert {field.name for field in fields(Settings)} <= set(executor.trait_names(config=True))


def test_judge_boxes_and_workers_run_without_nbgrader():
    """A worker's node needs no gradebook, and no notebook reaches nbgrader before it is judged."""
    modules = "grading.judge.judge_submission, grading.boxes.notebook_runner_in_box, grading.boxes.rank_launcher_in_box"
    modules += ", grading.gradebook.worker"
    source = f"import sys; sys.modules['nbgrader'] = None; import {modules}"
    subprocess.run([sys.executable, "-c", source], check=True)
