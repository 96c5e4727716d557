"""Lesson 3a's exercise: the folded answer is right, and each wrong answer is told what is wrong."""

import pytest
from lesson_answers import answer, defined

from shardcourse.exercises.fill_buckets import check_buckets

ANSWER = answer("03a_ddp_buckets.ipynb", "def fill_buckets")


def checked(code: str) -> str:
    return check_buckets(defined(code, "fill_buckets"))


def test_the_folded_answer_is_right():
    assert checked(ANSWER).startswith("Right: ")


def test_the_stub_is_not_written_yet():
    def stub(*_):
        raise NotImplementedError

    assert check_buckets(stub) == "fill_buckets is not written yet."


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("reversed(params)", "params", "Backward makes the last one's gradient first"),
        (">=", ">", "expected"),
        (" + list(opened.values())", "", "each parameter should be in one bucket"),
        ("p.dtype", "0", "a bucket holds two dtypes"),
        ("caps[p.dtype] = cap_bytes", "pass", "expected"),
    ],
)
def test_a_wrong_answer_is_told_what_is_wrong(old, new, words):
    assert old in ANSWER
    assert words in checked(ANSWER.replace(old, new))
