"""Lesson 4's exercise: the folded answer is right, and each wrong answer is told what is wrong."""

import pytest
import torch
import torch.distributed as dist
from lesson_answers import answer, defined

from shardcourse.exercises.whole_parameter_zero import check_whole_zero, owned_elements

ANSWER = answer("04_zero_1_and_2.ipynb", "class MyWholeZeRO")


def written(code: str) -> type:
    return defined(code, "MyWholeZeRO", torch=torch, dist=dist)


def test_the_folded_answer_is_right():
    assert check_whole_zero(written(ANSWER)).startswith("Right. ")


def test_the_stub_is_not_written_yet():
    class MyWholeZeRO:
        def __init__(self, params, optimizer_class, **options):
            raise NotImplementedError

    assert check_whole_zero(MyWholeZeRO) == "MyWholeZeRO is not written yet."


DROP = "            if owner != self.rank:\n                p.grad = None\n"


@pytest.mark.parametrize(
    ("edits", "words"),
    [
        ({".div_(self.n)": ""}, "Parameter 0 is wrong on rank 0"),
        ({"dist.broadcast(p.data, src=owner)": "pass"}, "Parameter 0 is wrong on rank 1"),
        ({"if owner == self.rank": "if True", DROP: ""}, "momentum for 489 elements in all. The model has 163."),
        ({"key=torch.numel, reverse=True": "key=torch.numel"}, "Largest first, to the least loaded rank, gives"),
        ({"dist.reduce(p.grad, dst=owner)": "dist.all_reduce(p.grad)"}, "A rank sends"),
        ({DROP: ""}, "still holds"),
    ],
)
def test_a_wrong_answer_is_told_what_is_wrong(edits, words):
    code = ANSWER
    for old, new in edits.items():
        assert old in code
        code = code.replace(old, new)
    assert words in check_whole_zero(written(code))


def test_owned_elements_goes_to_the_least_loaded_rank():
    assert owned_elements([3, 64, 48, 20, 28], 3) == [64, 51, 48]
