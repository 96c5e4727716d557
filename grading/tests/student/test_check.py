"""`check(...)`, as a student calls it and as the grader uses it."""

import threading
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from submissions import pickled

from grading import check
from grading.boxes.answers_folder_and_output_limits import ANSWERS
from grading.judge.verdict import Verdict
from grading.samples.sample import samples
from grading.samples.trial import run_cells


def test_an_unknown_check_is_told_those_there_are():
    with pytest.raises(ValueError, match=r"lab2\.gradients, lab2\.traffic"):
        check("lab2.gradient", None)
    with pytest.raises(ValueError, match="lab2_ddp"):
        check("lab99.gradients", None)


def test_an_answer_that_cannot_travel_is_told_why(tmp_path, monkeypatch):
    monkeypatch.setenv(ANSWERS, str(tmp_path))
    lock = threading.Lock()
    with pytest.raises(TypeError, match="lab2.plan: your answer can't travel to the ranks"):
        check("lab2.plan", lambda **_: lock)


def test_an_answer_that_brings_a_model_along_is_told_so(tmp_path, monkeypatch):
    monkeypatch.setenv(ANSWERS, str(tmp_path))
    model = bytes(5 << 20)
    with pytest.raises(TypeError, match=r"lab2\.plan: your answer takes 5 MiB .* may take 3: keep models"):
        check("lab2.plan", lambda **_: model)


@pytest.mark.parametrize("answer", [None, "plan_buckets", [1, 2], (print, 3), ()])
def test_an_answer_that_cannot_be_run_is_told_so(answer, tmp_path, monkeypatch):
    monkeypatch.setenv(ANSWERS, str(tmp_path))
    with pytest.raises(TypeError, match=r"lab2\.plan: the answer is the function or class itself, and this is"):
        check("lab2.plan", answer)
    assert list(tmp_path.iterdir()) == []


def test_while_grading_an_answer_is_only_written_down(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv(ANSWERS, str(tmp_path))
    check("lab2.plan", print)
    assert [f.name for f in tmp_path.iterdir()] == ["lab2.plan"]
    assert "handed in" in capsys.readouterr().out


def test_a_student_is_told_the_verdict_and_a_wrong_answer_raises(at_once, monkeypatch, capsys, tmp_path):
    monkeypatch.setenv(ANSWERS, str(tmp_path))
    solution = run_cells(samples("lab2_ddp")[0].notebook())
    monkeypatch.delenv(ANSWERS)
    check("lab2.plan", solution["plan_buckets"])
    assert "PASSED lab2.plan: 3 of 3 points" in capsys.readouterr().out
    names = {"__name__": "submission"}
    exec("def one_each(sizes_bytes, **_): return [1] * len(sizes_bytes)", names)
    with pytest.raises(AssertionError, match=r"lab2\.plan: on a link of"):
        check("lab2.plan", names["one_each"])


@pytest.mark.parametrize(
    ("points", "inconclusive", "raises"), [(3, False, False), (2.5, False, True), (0, False, True), (0, True, False)]
)
def test_all_points_and_noise_raise_nothing_a_part_of_the_points_does(points, inconclusive, raises, monkeypatch):
    verdict = Verdict("lab2.plan", points, 3, "so it is", inconclusive=inconclusive)
    monkeypatch.setattr("grading.student.check._referee", lambda *_: SimpleNamespace(judge=lambda *_, **__: [verdict]))
    with pytest.raises(AssertionError, match="lab2.plan: so it is") if raises else nullcontext():
        check("lab2.plan", print)


def test_pickled_helper_pickles_by_value():
    assert b"submission" in pickled("def f(): pass", "f")
