"""A class of two, and a judge that takes no time, for the tests of the gradebook."""

import shutil
from contextlib import closing

import pytest
from class_of_two import hand_in
from submissions import LAB, ROOT

from grading.gradebook.nbgrader_classroom import Classroom
from grading.judge.find_lab import lab_module
from grading.judge.judge_submission import Judge, Judged
from grading.judge.verdict import Verdict


@pytest.fixture(scope="module")
def released(tmp_path_factory):
    root = tmp_path_factory.mktemp("released")
    shutil.copytree(ROOT / "solutions" / LAB, root / "solutions" / LAB)
    with closing(Classroom(root)) as classroom:
        classroom.release(LAB)
    return root


@pytest.fixture
def classroom(released, tmp_path):
    shutil.copytree(released, tmp_path, dirs_exist_ok=True)
    with closing(Classroom(tmp_path)) as classroom:
        for student in ("ada", "bob"):
            hand_in(classroom, student, "first")
        yield classroom


@pytest.fixture
def judge(monkeypatch):
    """In the place of what takes minutes; `judge.points` is what it gives next, `judge.seen` what it judged."""

    class Fake:
        points, noisy, cause, seen = 1.0, False, "so", []

        def __call__(self, submission, settings):
            self.seen.append(sorted(p.name for p in submission.files.iterdir()))
            checks = lab_module(submission.lab).CHECKS.items()
            verdicts = [Verdict(name, self.points, c.points, self.cause, inconclusive=self.noisy) for name, c in checks]
            return Judged([], verdicts, "", 0.1)

    fake = Fake()
    fake.seen = []
    monkeypatch.setattr(Judge, "_judge", lambda self, *arguments: fake(*arguments))
    return fake
