"""Lesson 5a's exercise: the folded answer is right, and each wrong answer is told what is wrong."""

import pytest
import torch
import torch.distributed as dist
from lesson_answers import answer

from shardcourse.exercises.unit_by_rows import check_rows
from shardlab.shard_groups import all_gather

ANSWER = answer("05a_zero_3_from_scratch.ipynb", "def gather_rows")


def checked(code: str) -> str:
    names = {"__name__": "answers", "torch": torch, "dist": dist, "all_gather": all_gather}
    exec(code, names)
    return check_rows(names["shard_rows"], names["gather_rows"])


def test_the_folded_answer_is_right():
    assert checked(ANSWER).startswith("Right: ")


def test_the_stub_is_not_written_yet():
    def stub(*_):
        raise NotImplementedError

    assert check_rows(stub, stub) == "shard_rows and gather_rows are not written yet."


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (".clone())", ")", "the shard is a view, so the whole parameter can't be freed"),
        ("rows = -(-p.shape[0] // n)", "rows = p.shape[0] // n", "should have [2, 3]"),
        ("[: shape[0]]", "", "a parameter of shape [5, 3]: gather_rows returns the shape [6, 3]"),
        ("dim=1)", "dim=1)[::-1]", "gather_rows"),
        ("all_gather(received, mine)", "all_gather(received, mine); all_gather(received, mine)", "'all_gather': 2"),
    ],
)
def test_a_wrong_answer_is_told_what_is_wrong(old, new, words):
    assert old in ANSWER
    assert words in checked(ANSWER.replace(old, new))
